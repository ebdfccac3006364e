"""What stands before replicas: which there are, which requests are on their way, and whether more
may come."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

from moesaic.core.errors import EngineFailed, MoesaicError
from moesaic.serve.api_error import engine_unavailable
from moesaic.serve.metrics import ServerMetrics
from moesaic.serve.replicas import routers
from moesaic.serve.replicas.call import Call
from moesaic.serve.replicas.conversation import Route
from moesaic.serve.replicas.forwarding import Forwarding
from moesaic.serve.replicas.replica import Started
from moesaic.serve.request_record import RequestRecord
from moesaic.serve.server_settings import ServerSettings

_ENDING = "the server is ending and takes no more requests"
_NONE_RUNS = "no replica runs: they are being started again; ask again in a moment"
_APPEAR_S = 30.0  # for replicas that have begun to be known here


class Front:
    def __init__(self, application: str, settings: ServerSettings) -> None:
        self.settings = settings
        self.metrics = ServerMetrics()  # of responses alone
        self.draining = False
        self.started = Started(0, 0)
        self._application = application
        self._handle: Any = None
        self._under_way: dict[Forwarding, None] = {}  # in order of arrival

    async def open(self) -> None:
        """Raises what kept the replicas from loading their model."""
        from ray import serve

        from moesaic.serve.replicas.replica import Replica

        handle = serve.get_deployment_handle(Replica.__name__, self._application)
        handle._init(
            _run_router_in_separate_loop=False
        )  # each hop of a token between threads costs
        self._handle = handle.options(
            stream=True, method_name=Replica.answer.__name__, _by_reference=False
        )
        await self._wait_for_replicas()
        for found in await handle.broadcast(Replica.started.__name__).results_async():
            if isinstance(found, MoesaicError):
                raise found
            self.started = found

    async def _wait_for_replicas(self) -> None:
        end = time.monotonic() + _APPEAR_S
        while not self.replicas:
            if time.monotonic() > end:
                raise EngineFailed("Ray Serve has started replicas and does not name them")
            await asyncio.sleep(0.01)

    @property
    def replicas(self) -> Sequence[str]:
        router = routers.newest()
        return () if router is None else router.names

    def refuse_unavailable(self) -> None:
        if self.draining:
            raise engine_unavailable(_ENDING)
        if not self.replicas:
            raise engine_unavailable(_NONE_RUNS)

    def begin(self, call: Call, record: RequestRecord) -> Forwarding:
        forwarding = Forwarding(self._handle.remote, call, record)
        self._under_way[forwarding] = None
        forwarding.on_end = lambda: self._ended(forwarding)
        return forwarding

    async def ask(self, replica: str, path: str) -> tuple[int, bytes]:
        """What one replica says of itself."""
        record = RequestRecord("", "GET", path)
        call = Call("GET", path, b"", [], None, b"", Route(replica=replica))
        forwarding = self.begin(call, record)
        try:
            head = await forwarding.begin()
            if forwarding.replica != replica:
                raise engine_unavailable(f"replica {replica} has ended")
            return head.status, b"".join([piece async for piece in forwarding.pieces()])
        finally:
            forwarding.end()

    def avoid(self, replica: str | None) -> None:
        router = routers.newest()
        if replica is not None and router is not None:
            router.affinity.avoid(replica)

    def end_all(self) -> None:
        for forwarding in list(self._under_way):
            forwarding.stop(engine_unavailable(_ENDING))

    async def close(self) -> None:
        """Replicas end with their deployment."""

    def _ended(self, forwarding: Forwarding) -> None:
        self._under_way.pop(forwarding, None)
        if forwarding.lost:
            self.avoid(forwarding.replica)
            sys.stderr.write(f"replica {forwarding.replica} has ended: another one is started\n")
