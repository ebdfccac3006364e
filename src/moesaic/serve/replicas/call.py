"""What the front sends to a replica, and what it gets back: the head of a response, pieces of its
body, and at last the request's line of the log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from moesaic.serve.replicas.affinity import Ticket
from moesaic.serve.replicas.conversation import Route

Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class Call:
    method: str
    path: str
    query: bytes
    headers: Headers
    client: tuple[str, int] | None
    body: bytes
    route: Route = field(default_factory=Route)  # of the router, as are:
    ticket: Ticket | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """What the router knows stays with it."""
        given = (self.method, self.path, self.query, self.headers, self.client, self.body)
        return Call, given


@dataclass(frozen=True, slots=True)
class Head:
    status: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class Ended:
    """`record`: the fields of a `RequestRecord` that a replica knows."""

    record: dict[str, Any]


# Pieces of the body are bytes.
Message = Head | bytes | Ended
