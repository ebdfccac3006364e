"""Copies of experts that have begun and not arrived: what every body writes down about them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from moesaic.core.layer_plan import Move
from moesaic.core.residency import Residency


class Copied(Protocol):
    """A body's own record of a copy."""

    move: Move


CopyT = TypeVar("CopyT", bound=Copied)


class UnderWay(Generic[CopyT]):
    """The copies under way, oldest first. `residency` follows: a copy takes its slots when it
    begins and is there when it has arrived."""

    def __init__(self, residency: Residency) -> None:
        self.residency = residency
        self.bytes_moved = 0  # of all copies that have begun
        self._copies: list[CopyT] = []

    def __iter__(self) -> Iterator[CopyT]:
        return iter(self._copies)

    def __len__(self) -> int:
        return len(self._copies)

    @property
    def oldest(self) -> CopyT | None:
        return self._copies[0] if self._copies else None

    def to_layer(self, layer: int) -> list[CopyT]:
        return [copy for copy in self._copies if copy.move.layer == layer]

    def begin(self, copy: CopyT, size: int) -> None:
        """`size` in bytes."""
        self.residency.start(copy.move)
        self.bytes_moved += size
        self._copies.append(copy)

    def arrive(self, copy: CopyT) -> None:
        self.residency.complete(copy.move)
        self._copies.remove(copy)

    def forget(self) -> None:
        """After an interruption, when residency is rebuilt from what is in memory."""
        self._copies.clear()
