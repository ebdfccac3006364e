"""Does a stream bound what it holds for a client that does not read, and end for one that left?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.requests import Request

from moesaic.serve import event_stream
from moesaic.serve.event_stream import EventStream
from moesaic.serve.request_record import RequestRecord


class Connection:
    """What the app is called with. `reads`: so many messages are taken, then none."""

    def __init__(self, reads: int | None = None) -> None:
        self.sent: list[bytes] = []
        self.dropped = self.ended = False
        self.gone = asyncio.Event()
        self._reads = reads

    async def run(self, events: AsyncGenerator[bytes, None], keep_alive_s: float = 60) -> None:
        scope = {"type": "http", "state": {"record": RequestRecord("id", "POST", "/")}}
        stream = EventStream(events, keep_alive_s, self._end, self._drop)
        await asyncio.wait_for(stream(scope, self._receive, self._send), 10)

    def _end(self) -> None:
        self.ended = True

    def _drop(self, request: Request) -> None:
        self.dropped = True

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self._reads is not None and len(self.sent) >= self._reads:
            await asyncio.Event().wait()
        self.sent.append(message.get("body", b""))


class Events:
    """Endless events; `closed` when their reader has stopped."""

    def __init__(self, size: int = 100, pause_s: float = 0.0) -> None:
        self.made, self.closed = 0, False
        self._size, self._pause_s = size, pause_s

    async def each(self) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                self.made += 1
                yield b"x" * self._size
                await asyncio.sleep(self._pause_s)
        finally:
            self.closed = True


def test_a_client_that_does_not_read_is_dropped_and_few_events_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_stream, "UNREAD_S", 0.2)

    async def serve() -> None:
        connection, events = Connection(reads=2), Events(size=10_000)
        await connection.run(events.each())
        assert connection.dropped
        assert connection.ended
        assert events.closed
        assert events.made <= event_stream.MOST_UNSENT_BYTES // 10_000 + 4

    asyncio.run(serve())


def test_a_client_that_takes_nothing_for_long_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "UNREAD_S", 0.05)

    async def serve() -> None:
        connection, events = Connection(reads=2), Events(pause_s=0.01)
        await connection.run(events.each())
        assert connection.dropped
        assert events.closed

    asyncio.run(serve())


@pytest.mark.parametrize("sizes", [(600_000, 600_000), (3_000_000,), (10, 3_000_000, 10), (9,) * 9])
def test_events_that_are_ready_together_reach_a_client_that_reads(sizes: tuple[int, ...]) -> None:
    """However large they are."""

    async def ready() -> AsyncGenerator[bytes, None]:
        for number, size in enumerate(sizes):
            yield b"%d" % number * size

    async def serve() -> None:
        connection = Connection()
        await connection.run(ready())
        assert not connection.dropped
        whole = b"".join(b"%d" % number * size for number, size in enumerate(sizes))
        assert b"".join(connection.sent[2:]) == whole
        assert max(map(len, connection.sent)) <= max(event_stream.MOST_UNSENT_BYTES, *sizes, 0)

    asyncio.run(serve())


def test_a_client_that_leaves_ends_events_that_wait_for_room() -> None:
    async def serve() -> None:
        connection, events = Connection(reads=2), Events(size=600_000)
        running = asyncio.create_task(connection.run(events.each()))
        while events.made < 3:
            await asyncio.sleep(0)
        connection.gone.set()
        await running
        assert events.closed
        assert connection.ended

    asyncio.run(serve())


def test_a_client_that_leaves_ends_its_events() -> None:
    async def serve() -> None:
        connection, events = Connection(), Events(pause_s=0.01)
        running = asyncio.create_task(connection.run(events.each()))
        while not events.made:
            await asyncio.sleep(0)
        connection.gone.set()
        await running
        assert events.closed
        assert connection.ended
        assert not connection.dropped

    asyncio.run(serve())


def test_events_that_pile_up_are_sent_together_and_in_order() -> None:
    async def few() -> AsyncGenerator[bytes, None]:
        for number in range(100):
            yield b"%d " % number
            if number % 10 == 0:
                await asyncio.sleep(0.001)

    async def serve() -> None:
        connection = Connection()
        await connection.run(few())
        _, first, *rest = connection.sent
        assert first.startswith(b": ")
        assert b"".join(rest).split() == [b"%d" % number for number in range(100)]
        assert len(rest) < 50

    asyncio.run(serve())


def test_a_failure_of_the_events_is_not_hidden() -> None:
    async def failing() -> AsyncGenerator[bytes, None]:
        yield b"one"
        raise ValueError("ours")

    async def serve() -> None:
        connection = Connection()
        with pytest.raises(ValueError, match="ours"):
            await connection.run(failing())
        assert connection.ended

    asyncio.run(serve())


def test_comments_come_by_the_clock_while_nothing_else_does() -> None:
    async def slow() -> AsyncGenerator[bytes, None]:
        yield b"first"
        await asyncio.sleep(0.5)
        yield b"second"

    async def serve() -> None:
        connection = Connection()
        await connection.run(slow(), keep_alive_s=0.05)
        between = connection.sent[connection.sent.index(b"first") + 1 :]
        comments = between[: between.index(b"second")]
        assert 3 <= len(comments) <= 10
        assert set(comments) == {b": keep-alive\n\n"}

    asyncio.run(serve())
