"""The rows of a step, part prose and part problems, and where in the data a run is."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from training.packing import Rows, join_rows
from training.prose_rows import ProseRows
from training.recipe import Data
from training.shards import Position, ShardStream


@dataclass(frozen=True, slots=True)
class DataPosition:
    prose_row: int = 0
    problems: Position = field(default_factory=Position)


class Mixture:
    def __init__(
        self, data: Data, prose: ProseRows, problems: ShardStream, start: DataPosition
    ) -> None:
        self._data, self._prose, self._problems = data, prose, problems
        self._prose_row = start.prose_row

    @property
    def position(self) -> DataPosition:
        """What the next batch begins with."""
        return DataPosition(self._prose_row, self._problems.position)

    def batch(self) -> Rows:
        prose, parts = self._data.prose_rows, []
        if prose:
            parts.append(self._prose.rows(self._prose_row, prose))
            self._prose_row += prose
        if prose < self._data.rows:
            parts.append(self._problems.rows(self._data.rows - prose))
        return join_rows(parts)


def boundaries(
    starts: np.ndarray[tuple[int, int], np.dtype[np.bool_]], per_row: int
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Where documents begin in the rows laid end to end, then their total length, repeated up to
    a length that depends on the shape only: compiled code wants one shape. Should there be more
    than `per_row` on average, rows with more are read as if the last ones were one."""
    rows, length = starts.shape
    found = np.flatnonzero(starts)
    if len(found) > rows * per_row:
        found = np.flatnonzero(starts & (np.cumsum(starts, axis=1) <= per_row))
    made = np.full(rows * per_row + 1, rows * length, np.int32)
    made[: len(found)] = found
    return made
