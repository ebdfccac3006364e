"""An engine's process that is killed, hangs, or loses its parent: is it said, and what remains?"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import engine, greedy, pid_of, soon, until

from moesaic import AsyncLLM, ProcessOptions, SamplingParams
from moesaic.core.errors import EngineEnded, ImpossibleSetting
from moesaic.engine.process.engine_process import LOG

LONG = SamplingParams(max_tokens=2000, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def model() -> Iterator[AsyncLLM]:
    made = engine(ProcessOptions(stall_s=2.0))
    yield made
    asyncio.run(made.close())


async def running(model: AsyncLLM, requests: int) -> list[asyncio.Task[Any]]:
    before = model.stats().generated_tokens
    calls = [asyncio.create_task(model.generate([[n + 1]], LONG)) for n in range(requests)]
    await until(lambda: model.stats().generated_tokens > before + 2 * requests)
    return calls


def folder_of(model: AsyncLLM) -> Path:
    assert model._client is not None
    assert model._client._link is not None
    return model._client._link.process.folder


def state(pid: int) -> str:
    """T: stopped. Z: it only waits for its parent to ask how it ended. Nothing: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def gone(pid: int) -> bool:
    return state(pid) in ("Z", "")


def test_a_killed_engine_is_named_to_all_its_requests_and_can_be_started_again(
    model: AsyncLLM,
) -> None:
    async def serve() -> None:
        calls = await running(model, 2)
        pid, folder = pid_of(model), folder_of(model)
        with (folder / LOG).open("a") as log:
            log.write("the last words\n")
        os.kill(pid, signal.SIGKILL)
        for said in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(said, EngineEnded)
            assert f"process {pid} was ended by SIGKILL" in str(said)
            assert "the last words" in str(said)
        with pytest.raises(EngineEnded, match="SIGKILL"):
            await model.generate([[1]], greedy(2))
        assert not folder.exists()
        assert model.stats().generated_tokens > 0  # the newest that arrived
        await model.restart()
        assert pid_of(model) != pid
        assert len((await model.generate([[1]], greedy(2)))[0].tokens) == 2
        assert model.stats().generated_tokens == 2

    soon(serve())


def test_the_requests_of_the_last_step_are_named(model: AsyncLLM) -> None:
    async def serve() -> None:
        (call,) = await running(model, 1)
        assert model._client is not None
        (number,) = model._client._pending
        step = model._client._link.process.record.read()  # type: ignore[union-attr]
        assert [one for _, one in step.requests] == [number]
        os.kill(pid_of(model), signal.SIGABRT)
        with pytest.raises(EngineEnded, match="SIGABRT") as caught:
            await call
        named = f"with request {number}" in str(caught.value)
        assert named or "No step was under way" in str(caught.value)
        assert "Fatal Python error: Aborted" in str(caught.value)  # its log
        await model.restart()

    soon(serve())


def test_an_engine_that_hangs_is_ended(model: AsyncLLM) -> None:
    async def serve() -> None:
        (call,) = await running(model, 1)
        os.kill(pid_of(model), signal.SIGSTOP)
        with pytest.raises(EngineEnded, match="made no progress for 2 s and was ended"):
            await call
        await model.restart()

    soon(serve())


@pytest.mark.long
def test_restarting_a_running_engine_ends_its_requests(model: AsyncLLM) -> None:
    async def serve() -> None:
        (call,) = await running(model, 1)
        await model.restart()
        with pytest.raises(EngineEnded, match="restarted"):
            await call
        assert len((await model.generate([[1]], greedy(2)))[0].tokens) == 2

    soon(serve())


def test_one_that_is_restarted_by_itself_keeps_requests_it_had_not_begun() -> None:
    async def serve() -> None:
        async with engine(ProcessOptions(restarts=1)) as model:
            (call,) = await running(model, 1)
            pid = pid_of(model)
            os.kill(pid, signal.SIGSTOP)  # what is asked now is not begun
            await until(lambda: state(pid) == "T")
            later = asyncio.create_task(model.generate([[1]], greedy(2)))
            await asyncio.sleep(0.05)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineEnded, match="SIGKILL"):
                await call
            assert len((await later)[0].tokens) == 2
            os.kill(pid_of(model), signal.SIGKILL)  # once is enough
            with pytest.raises(EngineEnded, match="SIGKILL"):
                await model.generate([[1]], LONG)

    soon(serve())


def test_closing_ends_requests_threads_process_and_folder() -> None:
    before = threading.enumerate()

    async def serve() -> Any:
        model = engine()
        (call,) = await running(model, 1)
        pid, folder = pid_of(model), folder_of(model)
        assert folder.stat().st_mode & 0o777 == 0o700
        await model.close()
        await model.close()
        assert gone(pid)
        assert not folder.exists()
        with pytest.raises(ImpossibleSetting, match="was closed"):
            await model.generate([[1]])
        return await call

    (answer,) = soon(serve())
    assert answer.finish_reason == "cancelled"
    assert threading.enumerate() == before


CALLER = """
import asyncio, os, signal, sys
from moesaic import AsyncLLM, ProcessOptions, SamplingParams

async def serve():
    model = AsyncLLM(process=True, threads=1)
    print(model._client.process_id, model._client._link.process.folder, flush=True)
    async with model:
        await model.generate([[1]], SamplingParams(max_tokens=10**6, ignore_eos=True))
        await asyncio.sleep(60)

if __name__ == "__main__":
    asyncio.run(serve())
"""


@pytest.mark.parametrize(
    "ending", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_an_engine_ends_with_its_parent(ending: int, tmp_path: Path) -> None:
    script = tmp_path / "caller.py"
    script.write_text(CALLER)
    caller = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    with caller.stdout as said:
        pid, folder = said.readline().split()
        caller.send_signal(ending)
        caller.wait(60)
    until_s = time.monotonic() + 20
    while not gone(int(pid)) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert gone(int(pid))
    if ending == signal.SIGINT:
        assert not Path(folder).exists()


def test_a_fork_is_refused_and_leaves_the_engine_alone(model: AsyncLLM) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(model.close())
            asyncio.run(model.generate([[1]]))
        except ImpossibleSetting as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        assert f"loaded by process {os.getpid()}" in said.read()
    os.waitpid(child, 0)
    assert len(soon(model.generate([[1]], greedy(2)))[0].tokens) == 2
