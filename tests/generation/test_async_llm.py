"""Do many clients share one model, each with its own answer, and may any of them leave?"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from small_llms import MACHINES, TIGHT, greedy, llm, prompts, stock_greedy

import stock
from chat_models import talking
from moesaic import AsyncLLM, SamplingParams
from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.completion import Chunk

LENGTHS = (3, 20, 1, 9, 12, 2, 7, 5)
TOKENS = 12


def async_llm(machine: str = "cpu", **options: Any) -> AsyncLLM:
    return AsyncLLM(stock.saved("olmoe").folder, **(TIGHT | MACHINES[machine] | options))


async def listen(model: AsyncLLM, prompt: list[int], params: SamplingParams) -> list[int | None]:
    return [chunk.token async for chunk in model.stream(prompt, params)]


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("machine", MACHINES)
def test_eight_clients_and_one_leaves(machine: str) -> None:
    asked = prompts(LENGTHS)

    async def serve() -> tuple[list[Any], int]:
        async with async_llm(machine) as model:
            leaver = asyncio.create_task(listen(model, [9, 9], greedy(200)))
            await until(lambda: model.stats().generated_tokens >= 3)
            clients = [asyncio.create_task(listen(model, p, greedy(TOKENS))) for p in asked]
            await asyncio.sleep(0)
            leaver.cancel()
            answers = await asyncio.gather(leaver, *clients, return_exceptions=True)
            assert model.model.batcher.idle
            return answers, model.stats().steps

    answers, steps = asyncio.run(serve())
    assert isinstance(answers[0], asyncio.CancelledError)
    saved = stock.saved("olmoe")
    assert answers[1:] == [stock_greedy(saved.model, prompt, TOKENS) for prompt in asked]
    assert steps < sum(LENGTHS) + TOKENS * len(LENGTHS)  # as many as tokens without sharing


def test_generate_gives_whole_answers_in_order() -> None:
    async def serve() -> Any:
        async with AsyncLLM(talking().folder, **TIGHT) as model:
            chat = model.chat([{"role": "user", "content": "Hello"}], greedy(4))
            return await asyncio.gather(
                model.generate(["Weights", "The router"], [greedy(3), greedy(5)]), chat
            )

    (short, long), answer = asyncio.run(serve())
    assert (len(short.tokens), len(long.tokens), len(answer.tokens)) == (3, 5, 4)
    known = talking()
    ids = known.tokenizer("The router")["input_ids"]
    written = stock_greedy(known.model, ids, 5)
    assert long.text == known.tokenizer.decode(written, skip_special_tokens=True)


def test_a_cancelled_call_cancels_all_its_requests() -> None:
    async def serve() -> None:
        async with async_llm() as model:
            call = asyncio.create_task(model.generate(prompts(LENGTHS), greedy(100)))
            await until(lambda: model.stats().generated_tokens)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until(lambda: model.model.batcher.idle)
            assert len((await model.generate([[1]], greedy(2)))[0].tokens) == 2

    asyncio.run(serve())


def test_leaving_a_stream_frees_the_place() -> None:
    async def serve() -> None:
        async with async_llm(max_sequences=1) as model:
            async for chunk in model.stream([1], greedy(200)):
                assert chunk.finish_reason is None
                break
            assert await listen(model, [2], greedy(2))

    asyncio.run(asyncio.wait_for(serve(), 20))


def test_what_is_wrong_is_said_at_once() -> None:
    async def serve() -> None:
        async with async_llm() as model:
            with pytest.raises(ImpossibleSetting, match=r"no tokenizer\.json"):
                model.stream("text")
            with pytest.raises(ImpossibleSetting, match="token id 97"):
                await model.generate([[1], [97]])
            assert model.stats().steps == 0

    asyncio.run(serve())


def test_a_machine_that_is_gone_fails_every_request() -> None:
    async def serve() -> None:
        async with async_llm() as model:
            runner = model.model.runner
            whole = runner.step

            def fail(work: Any) -> Any:
                raise OSError("the disk is gone")

            runner.step = fail  # type: ignore[method-assign]
            calls = [model.generate([[n]], greedy(3)) for n in range(5)]
            said = await asyncio.gather(*calls, return_exceptions=True)
            assert [str(one) for one in said] == ["the disk is gone"] * 5
            runner.step = whole  # type: ignore[method-assign]
            assert len((await model.generate([[1]], greedy(2)))[0].tokens) == 2

    asyncio.run(asyncio.wait_for(serve(), 20))


def test_closing_ends_what_goes_on_and_frees_threads() -> None:
    before = threading.enumerate()

    async def serve() -> tuple[AsyncLLM, Any]:
        model = async_llm("emulated")
        call = asyncio.create_task(model.generate([[1], [2]], greedy(200)))
        await until(lambda: model.stats().generated_tokens)
        await model.close()
        await model.close()
        with pytest.raises(ImpossibleSetting, match="was closed"):
            await model.generate([[1]])
        return model, await call

    _, answers = asyncio.run(asyncio.wait_for(serve(), 20))
    assert {one.finish_reason for one in answers} == {"cancelled"}
    assert threading.enumerate() == before


def test_a_client_whose_loop_is_gone_does_not_stay() -> None:
    """Another thread's event loop may close while its request runs."""

    async def abandon(model: AsyncLLM) -> None:
        chunks = model.stream([1], greedy(200))
        await anext(chunks)
        kept.append(chunks)  # so that it is not garbage-collected

    async def serve() -> None:
        async with async_llm() as model:
            loop = asyncio.new_event_loop()
            await asyncio.to_thread(loop.run_until_complete, abandon(model))
            loop.close()
            await until(lambda: model.model.batcher.idle)

    kept: list[Any] = []
    asyncio.run(serve())


# Closing a model while it is used: do streams end in words, without hanging or failing?

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
