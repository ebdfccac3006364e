"""A response of server-sent events: its headers go out before the first event is there, comments
keep it alive, and neither a client that has left nor one that does not read holds anything."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from moesaic.serve.request_record import record_of

MOST_UNSENT_BYTES = 1 << 20  # of events that wait for the client: further ones are not read
UNREAD_S = 30.0  # a client that takes nothing for so long is dropped
_LOOKS = 4  # within that time
DONE = b"data: [DONE]\n\n"
_BEGIN = b": the request was accepted\n\n"
_ALIVE = b": keep-alive\n\n"
_SLOW = "the client did not read its response and was dropped"


def event(data: bytes) -> bytes:
    """JSON has no line ends of its own."""
    return b"data: " + data + b"\n\n"


def named_event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\n" + event(data)


async def disconnected(receive: Receive) -> None:
    """Return when the client has left; its request was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


class _Unsent:
    """Bytes between the engine's pace and the client's."""

    def __init__(self, limit: int) -> None:
        self._data = bytearray()
        self._limit = limit
        self._changed, self._taken = asyncio.Event(), asyncio.Event()
        self._ended = False

    async def add(self, data: bytes) -> None:
        """Wait for room. One event alone has it, however large it is."""
        while self._data and len(self._data) + len(data) > self._limit:
            self._taken.clear()
            await self._taken.wait()
        self._data += data
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    async def take(self) -> bytes | None:
        """All there is; None: nothing follows."""
        await self._changed.wait()
        data = bytes(self._data)
        self._data.clear()
        self._taken.set()
        if not self._ended:
            self._changed.clear()
        return data or None


class EventStream(Response):
    """`events` are sent as they come; `on_end` is called when no more are wanted."""

    media_type = "text/event-stream"
    begin = _BEGIN

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        keep_alive_s: float | None,
        on_end: Callable[[], object],
        drop: Callable[[Request], object],
    ) -> None:
        """`keep_alive_s`: None where what stands before this server sends comments. `drop` closes
        the connection of a client that does not read."""
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._keep_alive_s = math.inf if keep_alive_s is None else keep_alive_s
        self._on_end, self._drop = on_end, drop
        self._sends_since: float | None = None  # None: nothing waits for the client
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") == "HEAD":
            await self._only_head(send)
            return
        request, unsent = Request(scope), _Unsent(MOST_UNSENT_BYTES)
        writing = asyncio.create_task(self._write(unsent, send))  # first: headers precede prefill
        reading = asyncio.create_task(self._read(unsent))
        leaving = asyncio.create_task(disconnected(receive))
        watching = asyncio.create_task(self._watch(unsent))
        tasks = (reading, writing, leaving, watching)
        try:
            waited = set(tasks)
            while not (writing.done() or leaving.done()):
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    watching.result()
                if reading.done():
                    waited.discard(reading)
                    reading.result()
            if writing.done():
                writing.result()
        except TimeoutError:
            record_of(request).error = _SLOW
            self._drop(request)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._on_end()

    async def _only_head(self, send: Send) -> None:
        """The connection is free for the next request then."""
        try:
            await self._begin(send)
            await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._events.aclose()
            self._on_end()

    async def _read(self, unsent: _Unsent) -> None:
        async with aclosing(self._events) as events:
            async for data in events:
                await unsent.add(data)
        unsent.end()

    async def _begin(self, send: Send) -> None:
        await self._send(
            send,
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            },
        )

    async def _write(self, unsent: _Unsent, send: Send) -> None:
        await self._begin(send)
        data: bytes | None = self.begin
        while data is not None:
            await self._send(send, {"type": "http.response.body", "body": data, "more_body": True})
            data = await unsent.take()
        await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, message: dict[str, object]) -> None:
        loop = asyncio.get_running_loop()
        self._sends_since = loop.time()
        await send(message)
        self._sends_since, self._sent_at = None, loop.time()

    async def _watch(self, unsent: _Unsent) -> None:
        """By the clock: a comment where nothing was sent, an error where the client takes nothing.
        One timer for a stream costs less than one for each of its pieces."""
        loop = asyncio.get_running_loop()
        while True:
            if self._sends_since is not None:
                left = self._sends_since + UNREAD_S - loop.time()
                if left <= 0:
                    raise TimeoutError(_SLOW)
            else:
                left = self._sent_at + self._keep_alive_s - loop.time()
                if left <= 0:
                    await unsent.add(_ALIVE)
                    left = self._keep_alive_s
            await asyncio.sleep(min(left, self._keep_alive_s, UNREAD_S / _LOOKS))
