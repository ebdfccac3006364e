"""Is a loaded model refused in words in a forked process, where it would wait for ever?"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from small_llms import MACHINES, TIGHT, greedy, llm

import stock
from moesaic import AsyncLLM
from moesaic.core.errors import ImpossibleSetting
from moesaic.workloads.source import open_trace

SOON_S = 60
OTHERWISE = 3


def in_a_fork(work: Callable[[], object]) -> str:
    """What the work said in a forked process: why it was refused, or nothing."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = OTHERWISE
        try:
            work()
            status = 0
        except ImpossibleSetting as error:
            os.write(write, str(error).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    guard = Timer(SOON_S, os.kill, (child, signal.SIGKILL))
    guard.start()
    try:
        with os.fdopen(read) as said:
            words = said.read()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        guard.cancel()
    return words


def refused_to(process: int, words: str) -> bool:
    return f"loaded by process {process}" in words and "'spawn'" in words


@pytest.mark.parametrize("machine", MACHINES)
def test_a_forked_process_is_refused_with_another_way_to_start_it(
    machine: str, tmp_path: Path
) -> None:
    record, me = tmp_path / "trace.moet", os.getpid()
    with llm(stock.saved("olmoe").folder, machine, record=record) as model:
        before = model.generate([[1, 2, 3]], greedy(4))
        stream = model.stream([1, 2, 3], greedy(4))
        first = next(stream).token
        assert refused_to(me, in_a_fork(lambda: model.generate([[1, 2, 3]], greedy(4))))
        assert refused_to(me, in_a_fork(lambda: list(model.stream([1, 2, 3], greedy(4)))))
        assert refused_to(me, in_a_fork(lambda: list(stream)))
        assert in_a_fork(model.close) == ""
        assert not record.exists(), "a fork must not finish the recording"
        after = model.generate([[1, 2, 3]], greedy(4))
        assert (first, *(chunk.token for chunk in stream))[:4] == before[0].tokens[:4]
    assert after[0].tokens == before[0].tokens
    assert open_trace(record).header.num_experts == 12


def test_so_is_one_of_an_asynchronous_model() -> None:
    async def use(model: AsyncLLM, kind: str) -> Any:
        if kind == "close":
            return await model.close()
        return await model.generate([[1, 2, 3]], greedy(4))

    model = AsyncLLM(stock.saved("olmoe").folder, **TIGHT)
    before = asyncio.run(use(model, "generate"))
    words = in_a_fork(lambda: asyncio.run(use(model, "generate")))
    assert refused_to(os.getpid(), words)
    assert in_a_fork(lambda: asyncio.run(use(model, "close"))) == ""
    after = asyncio.run(use(model, "generate"))
    assert after[0].tokens == before[0].tokens
    asyncio.run(use(model, "close"))


def test_a_fork_cannot_open_a_model_after_its_parent_has() -> None:
    """Its first parallel loop would wait for threads that only the parent has."""

    def open_and_use() -> None:
        with llm(stock.saved("olmoe").folder, "cpu") as own:
            own.generate([[1, 2, 3]], greedy(4))

    open_and_use()
    words = in_a_fork(open_and_use)
    assert f"a fork of process {os.getpid()}" in words
    assert "'spawn'" in words
