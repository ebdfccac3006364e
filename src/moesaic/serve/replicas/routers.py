"""The router of this process: Ray makes it, and the front asks it which replicas there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from moesaic.serve.replicas.affinity import Affinity


class Router(Protocol):
    affinity: Affinity

    @property
    def names(self) -> Sequence[str]: ...


_made: list[Router] = []


def add(router: Router) -> None:
    _made.append(router)


def newest() -> Router | None:
    """None: Ray has made none yet."""
    return _made[-1] if _made else None
