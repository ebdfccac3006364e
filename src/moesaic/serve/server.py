"""Runs the app: binds its port before weights are read, and ends in order on a signal."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import uvicorn
from starlette.requests import Request
from starlette.types import ASGIApp

from moesaic.core.errors import ImpossibleSetting
from moesaic.serve.connections import limited_protocol
from moesaic.serve.log_messages import log_messages
from moesaic.serve.metrics import ServerMetrics
from moesaic.serve.open_files import allow_many_files
from moesaic.serve.server_settings import ServerSettings
from moesaic.serve.signals import caught_signals

_LAST_WORDS_S = 5  # for responses to be sent after their answers were cancelled
_BACKLOG = 2048
_SEND_BUFFER_BYTES = 1 << 18  # of the system, per connection: it grows to megabytes otherwise


class Door(Protocol):
    """What answers requests, as the server begins and ends it."""

    settings: ServerSettings
    metrics: ServerMetrics
    draining: bool  # no more requests are taken

    async def open(self) -> None:
        """Called in the server's event loop, before connections are taken."""

    def end_all(self) -> None:
        """Cancel what still runs: its clients get an error."""

    async def close(self) -> None: ...


# What makes the app; it is given what closes the connection of a client that does not read.
MakeApp = Callable[[Callable[[Request], object]], ASGIApp]


def bind(settings: ServerSettings) -> socket.socket:
    """The port is this server's from here on; connections are taken when the model is loaded."""
    host, port = settings.host, settings.port
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ImpossibleSetting(
            f"--host {host!r} is no address of this machine ({error.strerror}): use 127.0.0.1 for "
            "this machine alone, or 0.0.0.0 for all that can reach it"
        ) from None
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _cannot_bind(host, port, error) from None
    return bound


def address_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(door: Door, make_app: MakeApp, bound: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until a signal ends it; `ready` is called when connections are taken."""
    try:
        bound.listen(_BACKLOG)  # where another has begun to since it was bound
    except OSError as error:
        raise _cannot_bind(door.settings.host, door.settings.port, error) from None
    log_messages(door.settings.log)
    allow_many_files()
    asyncio.run(_serve(door, make_app, bound, ready))


async def _serve(
    door: Door, make_app: MakeApp, bound: socket.socket, ready: Callable[[], None]
) -> None:
    await door.open()
    server = _Server(door, make_app)
    with caught_signals(server.end):
        serving = asyncio.create_task(server.serve([bound]))
        while not (server.started or serving.done()):
            await asyncio.sleep(0.01)
        if server.started:
            ready()
        await serving
    await door.close()


class _Server(uvicorn.Server):
    def __init__(self, door: Door, make_app: MakeApp) -> None:
        self._door = door
        drain_s = door.settings.drain_s
        super().__init__(
            uvicorn.Config(
                make_app(self._drop),
                http=limited_protocol(door.settings, door.metrics),
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # `_drop` needs the address of the connection itself
                lifespan="off",
                ws="none",
                backlog=_BACKLOG,
                timeout_graceful_shutdown=int(drain_s) + _LAST_WORDS_S + 1,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """`caught_signals` does."""
        yield

    def end(self, number: int) -> None:
        """The first signal lets running requests finish, a second one ends them."""
        if self._door.draining:
            self._door.end_all()
            return
        self._door.draining = True
        self.should_exit = True
        asyncio.get_running_loop().call_later(self._door.settings.drain_s, self._door.end_all)

    def _drop(self, request: Request) -> None:
        """Close a client's connection without waiting for what it has not read."""
        address = request.scope.get("client")
        for connection in list(self.server_state.connections):
            peer = connection.transport.get_extra_info("peername")
            if peer is not None and peer[:2] == address:
                connection.transport.abort()


def _cannot_bind(host: str, port: int, error: OSError) -> ImpossibleSetting:
    if error.errno == errno.EADDRINUSE:
        return ImpossibleSetting(
            f"port {port} of {host} is in use by another program: end that one, or choose another "
            "port with --port (0: any free one)"
        )
    return ImpossibleSetting(
        f"the server cannot listen at {host}, port {port}: {error.strerror}; choose another with "
        "--host and --port"
    )
