"""By which name the engine's queue knows a client: clients have equal shares of it."""

from __future__ import annotations

from starlette.requests import Request

_LONGEST = 200  # characters


def client_name(request: Request, user: str | None) -> str:
    """The field `user` of a request, or its header `x-client`. Requests without either are of one
    client."""
    return (user or request.headers.get("x-client", ""))[:_LONGEST]
