"""How Ray Serve asks which replica a request goes to."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from moesaic.serve.replicas.affinity import Affinity
from moesaic.serve.replicas.call import Call


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """It lives in the front, beside what asks it. Ray sends the class as a value, so that it can
    keep nothing of its own."""

    def initialize_state(self, **kwargs: Any) -> None:
        from moesaic.serve.replicas import routers

        self.affinity = Affinity()
        routers.add(self)

    @property
    def supports_rejection_protocol(self) -> bool:
        """A replica refuses by itself, in words for the client, when too many wait."""
        return False

    @property
    def names(self) -> list[str]:
        return [each.unique_id for each in self.curr_replicas]

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        found = {each.replica_id.unique_id: each for each in candidate_replicas}
        if pending_request is None or not found:
            return [candidate_replicas]
        call = pending_request.args[0]
        assert isinstance(call, Call), "the only thing that is sent"
        if call.ticket is None or call.ticket.replica not in found:
            if call.ticket is not None:
                call.ticket.end()
            self.affinity.keep(found)
            call.ticket = self.affinity.admit(call.route)
        chosen = found[call.ticket.replica]
        self.replica_queue_len_cache.update(chosen.replica_id, 0)  # or the replica would be asked
        return [[chosen]]
