"""A pattern: the requests of one sub-channel in the order in which they enter, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moesaic.core.errors import ImpossibleSetting
from moesaic.machines.sim.dram.bank_state import Ints
from moesaic.machines.sim.dram.timing import Geometry

ADDRESS = ("rank", "bg", "bank", "row", "col")  # as a pattern file has them


class BadPattern(ImpossibleSetting):
    """A pattern that this memory cannot serve; names the request."""


@dataclass(frozen=True)
class Pattern:
    """Per request whether it writes, and its rank, bank group, bank in group, row and column."""

    write: Ints
    rank: Ints
    bg: Ints
    bank: Ints
    row: Ints
    col: Ints

    def __len__(self) -> int:
        return len(self.write)

    def global_bank(self, geometry: Geometry) -> Ints:
        """Banks numbered over the whole sub-channel."""
        groups: Ints = self.rank * geometry.bank_groups + self.bg
        return groups * geometry.banks + self.bank

    def only(self, chosen: Any) -> Pattern:
        """The requests that an index or mask chooses, in order."""
        return Pattern(*(values[chosen] for values in self._values()))

    def on_rank(self, rank: int) -> Pattern:
        return replace(self, rank=np.full_like(self.rank, rank))

    def _values(self) -> tuple[Ints, ...]:
        return (self.write, self.rank, self.bg, self.bank, self.row, self.col)


def limits(geometry: Geometry) -> dict[str, int]:
    """How many of each part of an address there are."""
    counts = (geometry.ranks, geometry.bank_groups, geometry.banks, geometry.rows, geometry.columns)
    return dict(zip(ADDRESS, counts, strict=True))


def pattern(geometry: Geometry, **parts: Any) -> Pattern:
    """A pattern of `write`, `rank`, `bg`, `bank`, `row`, `col`: arrays or numbers, 0 where not
    given."""
    unknown = parts.keys() - {"write", *ADDRESS}
    assert not unknown, f"no part of an address: {unknown}"
    given = [np.asarray(parts.get(name, 0), np.int64) for name in ("write", *ADDRESS)]
    made = Pattern(*(np.array(a, ndmin=1) for a in np.broadcast_arrays(*given)))
    check_pattern(made, geometry)
    return made


def check_pattern(made: Pattern, geometry: Geometry) -> None:
    if not len(made):
        raise BadPattern("the pattern has no requests: give at least one")
    for name, count in limits(geometry).items():
        values = getattr(made, name)
        wrong = (values < 0) | (values >= count)
        if wrong.any():
            place = int(np.argmax(wrong))
            raise BadPattern(
                f"request {place + 1}: {name} is {values[place]}, expected 0 to {count - 1}"
            )
