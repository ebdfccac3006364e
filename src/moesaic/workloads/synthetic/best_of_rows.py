"""The largest values of many short rows, compiled: what numpy's partial sort gives, many times as
fast. Rows in which the order of equal values would matter are left to numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from moesaic.compiling.code_cache import code_cache
from moesaic.compiling.kept_code import kept

Floats = NDArray[np.float32]
Columns = NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., object])

_SPARE = 6  # values more than asked for that are sorted rather than counted once more
_TRIES = 16
_FOLDER = code_cache(Path(__file__).parent, "compiled-synthetic")


def _compiled(function: F) -> F:
    return kept(function, _FOLDER, boundscheck=False)


@_compiled
def above(row: Floats, limit: float) -> int:
    count = 0
    for column in range(row.shape[0]):
        count += row[column] > limit
    return count


@_compiled
def limit_of(row: Floats, width: int, guess: float) -> float:
    """A value with at least `width` of the row above it, and where that is soon found not many
    more. Counting is fast, sorting is not."""
    low, high = -np.inf, np.inf
    limit, step = guess, 0.25
    for _ in range(_TRIES):
        count = above(row, limit)
        if count < width:
            high = limit
            limit = limit - step if low == -np.inf else (low + high) / 2
        elif count > width + _SPARE:
            low = limit
            limit = limit + step if high == np.inf else (low + high) / 2
        else:
            return limit
    return low


@_compiled
def sort_above(row: Floats, limit: float, values: Floats, columns: Columns) -> bool:
    """Those above the limit into `columns`, largest first, as many as it has space for; returns
    whether some of the values that decide about them are equal."""
    width, count, tie = len(columns), 0, False
    for column in range(row.shape[0]):
        value = row[column]
        if not value > limit:
            continue
        if count == width:
            if value <= values[width - 1]:
                tie |= value == values[width - 1]
                continue
            count -= 1
        at = count
        while at > 0 and values[at - 1] < value:
            values[at], columns[at] = values[at - 1], columns[at - 1]
            at -= 1
        tie |= at > 0 and values[at - 1] == value
        values[at], columns[at] = value, column
        count += 1
    return tie


@_compiled
def sort_rows(rows: Floats, found: Columns, tied: NDArray[np.bool_]) -> None:
    width = found.shape[1]
    values = np.empty(width, dtype=np.float32)
    limit = 1.0
    for r in range(rows.shape[0]):
        limit = limit_of(rows[r], width, limit)
        tied[r] = sort_above(rows[r], limit, values, found[r])
        if limit == -np.inf:
            limit = 1.0


def best_of_rows(rows: Floats, width: int) -> tuple[Columns, NDArray[np.bool_]]:
    """[n, width] columns of the largest values, largest first; [n] whether some of the values that
    decide about them are equal. Rows are at least so wide, and finite."""
    found = np.empty((len(rows), width), dtype=np.int64)
    tied = np.empty(len(rows), dtype=np.bool_)
    sort_rows(rows, found, tied)
    return found, tied
