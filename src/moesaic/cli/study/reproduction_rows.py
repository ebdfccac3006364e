"""Rows of a reproduction: the title that says whose routing they are about, and the same rows as
lines of a table or bars of a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moesaic.reproductions.row import Row


_KINDS = ("synthetic", "real")


def titled(title: str, rows: Iterable[Row]) -> str:
    """Rows say it in their conditions; some are about no routing at all."""
    said = [row.conditions for row in rows]
    kinds = [kind for kind in _KINDS if any(kind in words for words in said)]
    return f"{title} ({' and '.join(kinds)} routing)" if kinds else title


def named(title: str, rows: Iterable[Row], start: str) -> str:
    """The same of the rows whose id starts so."""
    return titled(title, [row for row in rows if row.id.startswith(start)])


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
