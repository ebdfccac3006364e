"""A request over HTTP and what came back, with the time of every piece: the client of benchmarks
that measure servers. Nothing is read out of a response before it has ended, so that the client
takes little of the processor that the server uses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_DATA = b"data: "
_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Event:
    at: float  # seconds, as `perf_counter` has them
    data: bytes

    def value(self) -> Any:
        return json.loads(self.data)


@dataclass(slots=True)
class Exchange:
    """`ended`: the response is whole."""

    began: float
    raw: bytearray = field(default_factory=bytearray)
    arrived: list[tuple[float, int]] = field(default_factory=list)  # bytes until then
    ended: bool = False

    @property
    def status(self) -> int | None:
        """None: no response came."""
        words = bytes(self.raw[:32]).split(b" ", 2)
        return int(words[1]) if len(words) > 2 and words[1].isdigit() else None

    @property
    def headers(self) -> dict[str, str]:
        head = bytes(self.raw.partition(_HEAD_END)[0]).decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in head)
        return {name.lower(): value.strip() for name, _, value in pairs}

    def body(self) -> bytes:
        return b"".join(piece for _, piece in self._pieces())

    def json(self) -> Any:
        return json.loads(self.body())

    def events(self) -> list[Event]:
        """The data of a stream, without its end."""
        found, text = [], bytearray()
        for at, piece in self._pieces():
            text += piece
            while (end := text.find(b"\n\n")) >= 0:
                lines = bytes(text[:end]).split(b"\n")
                del text[: end + 2]
                data = [line.removeprefix(_DATA) for line in lines if line.startswith(_DATA)]
                found += [Event(at, each) for each in data if each != _DONE]
        return found

    def _pieces(self) -> list[tuple[float, bytes]]:
        """Of the body, with the times at which they had come."""
        head, found, data = self.raw.find(_HEAD_END) + len(_HEAD_END), [], bytes(self.raw)
        if head < len(_HEAD_END):
            return []
        if self.headers.get("transfer-encoding") != "chunked":
            return [(self.arrived[-1][0], data[head:])]
        place = head
        while (line := data.find(b"\r\n", place)) >= 0:
            size = int(data[place:line].partition(b";")[0] or b"0", 16)
            piece = data[line + 2 : line + 2 + size]
            place = line + 2 + size + 2
            if not size or len(piece) < size:
                break
            found.append((self._time(line + 2 + size), piece))
        return found

    def _time(self, length: int) -> float:
        low, high = 0, len(self.arrived) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.arrived[middle][1] >= length else (middle + 1, high)
        return self.arrived[low][0]


class _Reader(asyncio.Protocol):
    """`leave` is asked after every piece whether the client goes."""

    def __init__(self, exchange: Exchange, leave: Callable[[Exchange], bool] | None) -> None:
        self._exchange, self._leave = exchange, leave
        self._transport: asyncio.Transport | None = None
        self._whole: int | None = None  # bytes of the response, once its head says so
        self._chunked = False
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a stream of bytes"
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        exchange, known = self._exchange, self._whole is not None or self._chunked
        exchange.raw += data
        exchange.arrived.append((perf_counter(), len(exchange.raw)))
        if not known:
            self._read_head()
        if self._chunked:
            exchange.ended = exchange.raw.endswith(_LAST_CHUNK)
        elif self._whole is not None:
            exchange.ended = len(exchange.raw) >= self._whole
        if exchange.ended or (self._leave is not None and self._leave(exchange)):
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        self._end()

    def _read_head(self) -> None:
        end = self._exchange.raw.find(_HEAD_END)
        if end < 0:
            return
        headers = self._exchange.headers
        self._chunked = headers.get("transfer-encoding") == "chunked"
        if not self._chunked:
            self._whole = end + len(_HEAD_END) + int(headers.get("content-length", "0"))

    def _end(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        if not self.finished.done():
            self.finished.set_result(None)


async def exchange(
    address: str,
    path: str,
    body: object = None,
    leave: Callable[[Exchange], bool] | None = None,
    method: str | None = None,
) -> Exchange:
    """Ask, and wait for the whole response, or until `leave` says that the client goes. The time
    begins before the connection does. `body` is sent as JSON unless it is bytes."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    method = method or ("GET" if body is None else "POST")
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {urlsplit(address).netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return await raw_exchange(address, head.encode() + data, leave)


async def raw_exchange(
    address: str, data: bytes, leave: Callable[[Exchange], bool] | None = None
) -> Exchange:
    """These bytes, whatever they are. What a server answers to half a request is that it closes."""
    where, made = urlsplit(address), Exchange(perf_counter())
    loop = asyncio.get_running_loop()
    transport, reader = await loop.create_connection(
        lambda: _Reader(made, leave), where.hostname or "127.0.0.1", where.port or 80
    )
    try:
        transport.write(data)
        await reader.finished
    finally:
        transport.abort()
    return made
