"""Requests that are cancelled, callers that do not read, and models that cannot be loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from engines import SAME, engine, greedy, soon, until

from moesaic import AsyncLLM, ProcessOptions, SamplingParams
from moesaic.core.errors import MoesaicError
from moesaic.engine.process import messages as m

LONG = SamplingParams(max_tokens=2000, temperature=0.0, ignore_eos=True)
CREDIT = 6


class OtherCaller:
    """A connection that reads only what a test reads."""

    def __init__(self, model: AsyncLLM) -> None:
        assert model._client is not None
        assert model._client._link is not None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(model._client._link.process.address)
        self.send(m.Hello())
        ready = self.next()
        assert isinstance(ready, m.Ready)
        self.connection = ready.connection

    def send(self, message: m.FromCaller) -> None:
        self._socket.send(m.encode(message))

    def submit(self, number: int, tokens: int = 2000, prompt: list[int] | None = None) -> None:
        fields = m.SamplingFields.of(greedy(tokens, ignore_eos=True), tokens)
        self.send(m.Submit(number, prompt or [number + 1], fields, tokens))

    def next(self) -> m.FromEngine:
        """But statistics that come by themselves."""
        while self._socket.poll(20_000):
            message = m.decode_from_engine(self._socket.recv())
            self.send(m.Read(1))
            if not (isinstance(message, m.Stats) and not message.answer):
                return message
        raise TimeoutError

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


@pytest.fixture(scope="module")
def model() -> Iterator[AsyncLLM]:
    made = engine(ProcessOptions(unread_messages=CREDIT, unread_s=0.3), max_sequences=2)
    yield made
    asyncio.run(made.close())


@pytest.fixture
def other(model: AsyncLLM) -> Iterator[OtherCaller]:
    made = OtherCaller(model)
    yield made
    made.close()


def test_cancelling_a_call_frees_its_place(model: AsyncLLM) -> None:
    async def serve() -> None:
        for _ in range(3):
            before = model.stats().generated_tokens
            calls = [asyncio.create_task(model.generate([[n]], LONG)) for n in range(1, 4)]
            await until(lambda before=before: model.stats().generated_tokens > before + 4)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        async for chunk in model.stream([1], LONG):
            assert chunk.finish_reason is None
            break
        (text,) = await model.generate([[2]], greedy(2))
        assert len(text.tokens) == 2
        assert model._client is not None
        await until(lambda: not model._client._pending)

    soon(serve())


def test_a_stop_string_ends_the_request_in_the_engine(model: AsyncLLM) -> None:
    async def serve() -> int:
        stopped = greedy(4000, stop="e", ignore_eos=True)
        before = model.stats().generated_tokens
        (text,) = await model.generate(["Once upon a time"], stopped)
        assert text.finish_reason == "stop"
        await model.generate([[1]], greedy(1))
        return model.stats().generated_tokens - before

    assert soon(serve()) < 1000


def test_a_caller_who_does_not_read_loses_its_requests(model: AsyncLLM, other: OtherCaller) -> None:
    async def serve() -> None:
        other.submit(1)
        texts = await asyncio.gather(*(model.generate([[n]], greedy(60)) for n in (3, 4)))
        assert [len(text.tokens) for (text,) in texts] == [60, 60]
        await asyncio.sleep(1.5)
        assert len((await model.generate([[5]], greedy(3)))[0].tokens) == 3

    soon(serve())
    assert isinstance(other.next(), m.Accepted)
    for _ in range(CREDIT):
        step = other.next()
        assert isinstance(step, m.Step)
        (update,) = step.updates
        if update.finish is not None:
            break
    assert (update.id, update.finish) == (1, "cancelled")
    assert update.fault is not None
    assert "were not read" in update.fault.text
    other.submit(2, tokens=2)  # it reads again
    assert isinstance(other.next(), m.Accepted)
    assert isinstance(other.next(), m.Step)


def test_ids_are_those_of_a_connection(model: AsyncLLM, other: OtherCaller) -> None:
    another = OtherCaller(model)
    try:
        assert another.connection != other.connection
        other.submit(7, tokens=3)
        another.submit(7, tokens=2)
        for caller, tokens in ((other, 3), (another, 2)):
            assert isinstance(caller.next(), m.Accepted)
            steps = [caller.next() for _ in range(tokens)]
            finishes = [u.finish for s in steps if isinstance(s, m.Step) for u in s.updates]
            assert finishes == [None] * (tokens - 1) + ["length"]
    finally:
        another.close()


def test_a_caller_who_leaves_takes_its_requests_along(model: AsyncLLM) -> None:
    leaver = OtherCaller(model)
    leaver.submit(1)
    leaver.submit(2)
    assert isinstance(leaver.next(), m.Accepted)
    leaver.close()
    assert len(soon(model.generate([[1]], greedy(4)))[0].tokens) == 4


def test_the_engine_refuses_what_it_cannot_do(other: OtherCaller) -> None:
    other.submit(1, prompt=[10**8])
    refused = other.next()
    assert isinstance(refused, m.Refused)
    assert "token id 100000000" in refused.fault.text
    other.submit(2)
    assert isinstance(other.next(), m.Accepted)
    other.submit(2)
    while not isinstance(refused := other.next(), m.Refused):
        assert isinstance(refused, m.Step)
    assert "request 2 is running" in refused.fault.text
    other.send(m.Cancel(2))
    other.send(m.GetStats())
    while not isinstance(other.next(), m.Stats):
        pass


@pytest.mark.parametrize(
    "options",
    [
        {"record": Path("/nowhere/trace.moet")},
        pytest.param({"quality_of": "another-model"}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_model_that_cannot_be_loaded_is_refused_alike(options: dict[str, Any]) -> None:
    said: list[tuple[type, str]] = []
    for process in (False, True):
        with pytest.raises(MoesaicError) as caught:
            engine(process, **options)
        said.append((caught.type, str(caught.value)))
    assert said[0] == said[1]


def test_a_recording_is_written_and_drained_requests_end(tmp_path: Path) -> None:
    from moesaic.workloads.source import open_trace

    record = tmp_path / "trace.moet"
    seen: list[tuple[int, int]] = []

    async def serve() -> None:
        made = engine(
            record=record, progress=lambda *counts: seen.append(counts), **SAME | {"threads": 1}
        )
        async with made as model:
            call = asyncio.create_task(model.generate([[1]], greedy(30)))
            await until(lambda: model.stats().generated_tokens > 2)
            assert model._client is not None
            assert await asyncio.to_thread(model._client.drain, 20)
            assert len((await call)[0].tokens) == 30
            with pytest.raises(MoesaicError, match="drained"):
                await model.generate([[2]], greedy(2))

    soon(serve())
    assert open_trace(record).header.num_experts > 1
    done, total = seen[-1]
    assert done == total > 0
