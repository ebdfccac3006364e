"""Runs the app: binds its port before weights are read, and ends in order on a signal."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.requests import Request

from moesaic.core.errors import ImpossibleSetting
from moesaic.serve.app import make_app
from moesaic.serve.connections import limited_protocol
from moesaic.serve.idle_unload import unload_when_idle
from moesaic.serve.log_messages import log_messages
from moesaic.serve.server_settings import ServerSettings
from moesaic.serve.service import Service
from moesaic.serve.signals import caught_signals

_LAST_WORDS_S = 5  # for responses to be sent after their answers were cancelled
_BACKLOG = 2048
_SEND_BUFFER_BYTES = 1 << 18  # of the system, per connection: it grows to megabytes otherwise


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


def run(service: Service, bound: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until a signal ends it; `ready` is called when connections are taken."""
    try:
        bound.listen(_BACKLOG)  # where another has begun to since it was bound
    except OSError as error:
        raise _cannot_bind(service.settings.host, service.settings.port, error) from None
    log_messages(service.settings.log)
    asyncio.run(_serve(service, bound, ready))


async def _serve(service: Service, bound: socket.socket, ready: Callable[[], None]) -> None:
    server = _Server(service)
    with caught_signals(server.end):
        serving = asyncio.create_task(server.serve([bound]))
        idling = asyncio.create_task(unload_when_idle(service))
        while not (server.started or serving.done()):
            await asyncio.sleep(0.01)
        if server.started:
            ready()
        await serving
        idling.cancel()
    await service.llm.close()


class _Server(uvicorn.Server):
    def __init__(self, service: Service) -> None:
        self._service = service
        drain_s = service.settings.drain_s
        super().__init__(
            uvicorn.Config(
                make_app(service, self._drop),
                http=limited_protocol(service.settings, service.metrics),
                log_config=None,
                access_log=False,
                server_header=False,
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
        if self._service.draining:
            self._service.end_all()
            return
        self._service.draining = True
        self.should_exit = True
        asyncio.get_running_loop().call_later(self._service.settings.drain_s, self._service.end_all)

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
