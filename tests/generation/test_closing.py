"""Closing a model while it is used: do streams end in words, without hanging or failing?"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from small_llms import MACHINES, TIGHT, greedy, llm

import stock
from moesaic import AsyncLLM
from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.completion import Chunk

LONG = greedy(230)


def ends_cancelled(chunks: list[Chunk]) -> bool:
    """With one last chunk that says so."""
    reasons = [chunk.finish_reason for chunk in chunks]
    return reasons == [None] * (len(chunks) - 1) + ["cancelled"]


@pytest.mark.parametrize("machine", MACHINES)
def test_between_the_chunks_of_streams(machine: str) -> None:
    before = threading.enumerate()
    model = llm(stock.saved("olmoe").folder, machine)
    streams = [model.stream([n, n], LONG) for n in range(1, 3)]
    said = [[next(stream), next(stream)] for stream in streams]
    model.close()
    for chunks, stream in zip(said, streams, strict=True):
        assert ends_cancelled([*chunks, *stream])
    assert list(streams[0]) == []
    with pytest.raises(ImpossibleSetting, match="was closed"):
        next(model.stream([1], LONG))
    model.close()
    assert threading.enumerate() == before


@pytest.mark.parametrize("machine", MACHINES)
def test_by_another_thread_while_a_stream_is_read(machine: str) -> None:
    model = llm(stock.saved("olmoe").folder, machine)
    closer = threading.Thread(target=model.close)
    chunks: list[Chunk] = []
    for chunk in model.stream([1, 2], LONG):
        chunks.append(chunk)
        if len(chunks) == 3:
            closer.start()
    closer.join(20)
    assert not closer.is_alive()
    assert ends_cancelled(chunks)
    assert len(chunks) < 230


def test_by_another_thread_in_the_middle_of_a_step() -> None:
    """It waits for the step: the machine is not taken away under it."""
    model = llm(stock.saved("olmoe").folder)
    runner, entered = model.model.runner, threading.Event()
    step = runner.step
    closers: list[threading.Thread] = []

    def close() -> None:
        entered.set()
        model.close()

    def slow(work: Any) -> Any:
        if len(closers) == 0 and runner.cache.length(work.slots[0]) > 4:
            closers.append(threading.Thread(target=close))
            closers[0].start()
            assert entered.wait(10)
            closers[0].join(0.05)
            assert closers[0].is_alive()
            assert not model.model.closed
        return step(work)

    runner.step = slow  # type: ignore[method-assign]
    (text,) = model.generate([[1, 2]], LONG)
    closers[0].join(20)
    assert text.finish_reason == "cancelled"
    assert 0 < len(text.tokens) < 230


def test_the_rest_of_what_has_arrived_comes_first() -> None:
    """Steps of another stream may have produced chunks of this one that are still unread."""
    model = llm(stock.saved("olmoe").folder)
    first, second = model.stream([1], LONG), model.stream([2], LONG)
    chunks = [next(first)]
    for _ in range(4):
        next(second)
    model.close()
    chunks += first
    assert ends_cancelled(chunks)
    assert sum(chunk.token is not None for chunk in chunks) >= 4


def test_closing_an_async_model_while_streams_are_read() -> None:
    async def read(model: AsyncLLM, prompt: int, chunks: list[Chunk]) -> None:
        async for chunk in model.stream([prompt], LONG):
            chunks.append(chunk)

    async def serve() -> Iterator[list[Chunk]]:
        model = AsyncLLM(stock.saved("olmoe").folder, **TIGHT)
        said: list[list[Chunk]] = [[], [], [], []]  # one waits for a slot
        readers = [asyncio.create_task(read(model, n, chunks)) for n, chunks in enumerate(said)]
        while sum(map(len, said)) < 6:
            await asyncio.sleep(0.001)
        await model.close()
        await asyncio.gather(*readers)
        return iter(said)

    said = list(asyncio.run(asyncio.wait_for(serve(), 30)))
    assert all(ends_cancelled(chunks) for chunks in said)
    assert max(map(len, said)) < 230
