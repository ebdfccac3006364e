"""The rows of a timeline picture: a lane each, and one for all lanes that differ in their numbers
only, as the compute units of DIMMs do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from moesaic.cli.shared.timeline_info import TimelineInfo
from moesaic.core.report import ENGINE, Span

NAMES = {"ndp": "NDP", "dimm-link": "DIMM\nlinks"}  # of lanes without their numbers
HEIGHTS = {"planner": 0.3, ENGINE: 0.3}  # of a lane's bars, where not the usual
HEIGHT = 0.72
UNITS_SIZE = 2.0  # of a row with several devices, where others have 1
_NUMBERS = re.compile(r"\d+(-\d+)*$")


class Row(NamedTuple):
    name: str
    parts: tuple[tuple[str, ...], ...]  # lanes of the row; those of one part lie on each other
    middle: float
    height: float

    def bars(self) -> Iterator[tuple[tuple[str, ...], float, float]]:
        """The lanes of every part, and where their bars lie: middle and height."""
        each = self.height / len(self.parts)
        top = self.middle - self.height / 2
        for number, lanes in enumerate(self.parts):
            yield lanes, top + (number + 0.5) * each, each


def timeline_rows(info: TimelineInfo, spans: Iterable[Span]) -> list[Row]:
    """The lanes of every run, and behind them all others that worked: devices side by side, links
    on one line."""
    found: dict[str, set[str]] = {lane: {lane} for lane in info.lanes}
    computing = set()
    for span in spans:
        base = span.lane if span.lane in found else _NUMBERS.sub("", span.lane)
        found.setdefault(base, set()).add(span.lane)
        if span.kind == "expert":
            computing.add(base)
    rows, edge = [], -0.5
    for base, lanes in found.items():
        ordered = tuple(sorted(lanes, key=_order))
        apart = len(ordered) > 1 and base in computing
        size = UNITS_SIZE if apart else 1.0
        parts = tuple((lane,) for lane in ordered) if apart else (ordered,)
        name = NAMES.get(base, info.lane_name(base))
        height = size - 1.0 + HEIGHTS.get(base, HEIGHT)
        rows.append(
            Row(f"{name}\n{len(parts)} units" if apart else name, parts, edge + size / 2, height)
        )
        edge += size
    return rows


def _order(lane: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", lane)))
