"""One replica: the app of the single server in a process of Ray Serve, with an engine process of
its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from moesaic.core.errors import MoesaicError
from moesaic.engine.async_llm import AsyncLLM
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.process.process_options import ProcessOptions
from moesaic.serve.app import make_app
from moesaic.serve.replicas.call import Call, Ended, Head, Message
from moesaic.serve.request_record import RequestRecord
from moesaic.serve.server_settings import ServerSettings
from moesaic.serve.service import Service

_LEAVES_S = 5.0  # for an answer to end after its client has left
_OF_FRONT = frozenset({"request_id", "method", "path", "status", "duration_s", "replica"})


@dataclass(frozen=True, slots=True)
class Launch:
    """What every replica runs."""

    model: str | None  # None: the bundled one
    settings: EngineSettings
    serving: ServerSettings
    alone: bool  # on a cluster of this machine: other machines cannot connect


@dataclass(frozen=True, slots=True)
class Started:
    sequences: int
    context: int


class Replica:
    def __init__(self, launch: Launch) -> None:
        from ray import serve

        if launch.alone:
            _listen_on_loopback()
        self._name = serve.get_replica_context().replica_id.unique_id
        self._service: Service | None = None
        self._mistake: MoesaicError | None = None
        try:
            llm = AsyncLLM(launch.model, launch.settings, process=ProcessOptions(restarts=1))
        except MoesaicError as error:  # the front says it: Ray would load again, and again
            self._mistake = error
            return
        self._service = Service(llm, replace(launch.serving, api_keys=(), cors=()))
        self._app: ASGIApp = make_app(self._service, _no_connection, self._name)

    async def started(self) -> Started | MoesaicError:
        if self._service is None:
            assert self._mistake is not None, "one of them is there"
            return self._mistake
        return Started(self._service.llm.sequences, self._service.processor.context)

    def check_health(self) -> None:
        """Raises where the engine has ended for good: Ray starts another replica."""
        failure = self._mistake if self._service is None else self._service.llm.state.failure
        if failure is not None:
            raise RuntimeError(str(failure))

    async def answer(self, call: Call) -> AsyncGenerator[Message, None]:
        """The app's response as it comes. Closing it tells the app that the client has left."""
        messages: asyncio.Queue[Message] = asyncio.Queue()
        left = asyncio.Event()
        working = asyncio.create_task(self._work(call, messages, left))
        try:
            while True:
                message = await messages.get()
                yield message
                if isinstance(message, Ended):
                    return
        finally:
            left.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(working, _LEAVES_S)

    async def _work(
        self, call: Call, messages: asyncio.Queue[Message], left: asyncio.Event
    ) -> None:
        bodies = [call.body]
        scope = _scope(call)

        async def receive() -> dict[str, Any]:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                messages.put_nowait(Head(message["status"], message["headers"]))
            elif message.get("body"):
                messages.put_nowait(bytes(message["body"]))

        try:
            await self._app(scope, receive, send)
        finally:
            record = scope["state"].get("record") or RequestRecord("", "", "")
            known = {n: v for n, v in asdict(record).items() if n not in _OF_FRONT}
            messages.put_nowait(Ended(known))

    async def __del__(self) -> None:
        if self._service is not None:
            await self._service.llm.close()


def _scope(call: Call) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": call.method,
        "scheme": "http",
        "path": call.path,
        "raw_path": call.path.encode(),
        "query_string": call.query,
        "root_path": "",
        "headers": call.headers,
        "client": call.client,
        "server": None,
        "state": {},
    }


def _no_connection(request: Request) -> None:
    """The front has it, and closes it."""


def _listen_on_loopback() -> None:
    """Ray Serve opens a port for each replica on all addresses of its machine, with Ray's token as
    the only guard."""
    from ray.serve._private import replica

    usual = replica.add_port_to_grpc_server

    def narrow(server: Any, address: str) -> Any:
        return usual(server, address.replace("[::]", "127.0.0.1"))

    replica.add_port_to_grpc_server = narrow
