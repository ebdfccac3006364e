"""Whose routing a reproduction's table or picture is about: in its title, from its rows."""

from __future__ import annotations

from collections.abc import Iterable
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
