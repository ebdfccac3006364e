"""Rows of TriMoE's reproduction as lines of a table or bars of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moesaic.reproductions.row import Row

RULES = ("own-share", "full", "none")
Lines = dict[str, dict[str, float]]


def pivot(rows: Sequence[Row], start: str, separator: str) -> Lines:
    """Rows whose id starts so, by what stands before and behind the last separator."""
    found: Lines = {}
    for row in rows:
        if row.id.startswith(start) and separator in row.id:
            line, _, column = row.id[len(start) :].rpartition(separator)
            found.setdefault(line, {})[column] = row.ours
    return found
