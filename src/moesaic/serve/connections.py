"""Limits of connections, below HTTP: how many there are at once, how long the headers of a request
may take to arrive, and how long a client may take nothing. Limits of bodies are the endpoints'."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, ClassVar

import msgspec
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from moesaic.serve.api_error import ApiError, too_many_connections, too_slow
from moesaic.serve.metrics import ServerMetrics
from moesaic.serve.server_settings import ServerSettings

_OVER_LIMIT_S = 1.0  # for headers of a connection that is one too many
_UNTAKEN_S = 60.0  # in which a client takes something; streams drop theirs before, and say so
OVER_LIMIT = "over_limit"  # in the state of requests whose connection is one too many


class _Limits(asyncio.Protocol):
    """Mixed into the protocol of uvicorn, whose attributes these are."""

    settings: ClassVar[ServerSettings]
    metrics: ClassVar[ServerMetrics]
    connections: set[Any]
    app_state: dict[str, Any]
    cycle: Any  # the request that is answered, or was
    transport: Any
    _timer: asyncio.TimerHandle | None = None
    _heard = False  # since the timer was set
    _refusal: ApiError | None = None  # of a connection that is one too many
    _writing: asyncio.TimerHandle | None = None  # while something waits for the client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=0)  # any byte that waits pauses writing
        most = self.settings.max_connections
        if len(self.connections) > most:
            self._refusal = too_many_connections(most)
            self.app_state = {**self.app_state, OVER_LIMIT: True}
            self.metrics.refused_connections += 1
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        if self._timer is None and (before is None or before.response_complete):
            self._expect_headers()
        self._heard = True
        super().data_received(data)
        if self.cycle is not before:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._stop_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        self._stop_writing()
        super().resume_writing()

    def _expect_reading(self) -> None:
        left = self.transport.get_write_buffer_size()
        loop = asyncio.get_running_loop()
        self._writing = loop.call_later(_UNTAKEN_S, self._look_at_writing, left)

    def _look_at_writing(self, before: int) -> None:
        """A client that reads slowly has its time; one that has read nothing is dropped."""
        if self.transport.get_write_buffer_size() < before:
            self._expect_reading()
        else:
            self.transport.abort()

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _expect_headers(self) -> None:
        """They are to arrive in time, however many pieces they come in."""
        limit_s = self.settings.receive_s
        if self._refusal is not None:
            limit_s = min(limit_s, _OVER_LIMIT_S)
        self._heard = False
        self._timer = asyncio.get_running_loop().call_later(limit_s, self._give_up)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self._heard:
            error = self._refusal or too_slow("the headers", self.settings.receive_s)
            body, words = msgspec.json.encode(error.body()), HTTPStatus(error.status).phrase
            head = (
                f"HTTP/1.1 {error.status} {words}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


def limited_protocol(settings: ServerSettings, metrics: ServerMetrics) -> type[asyncio.Protocol]:
    fields = {"settings": settings, "metrics": metrics}
    return type("LimitedProtocol", (_Limits, AutoHTTPProtocol), fields)
