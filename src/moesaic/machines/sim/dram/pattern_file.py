"""Reads pattern files: one `R rank bg bank row col` (or `W ...`) per line.

Empty lines and what follows a `#` are skipped. A mistake is reported with its line."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from moesaic.core.errors import BadFile
from moesaic.machines.sim.dram.pattern import ADDRESS, Pattern, limits
from moesaic.machines.sim.dram.timing import Geometry

_SHAPE = f"R {' '.join(ADDRESS)}"
_KINDS = {"R": 0, "W": 1}


class BadPatternFile(BadFile):
    def __init__(self, path: object, line: int, problem: str) -> None:
        super().__init__(f"{path}:{line}: {problem}")


def read_pattern(path: str | Path, geometry: Geometry) -> Pattern:
    counts = list(limits(geometry).items())
    try:
        lines = Path(path).read_text().splitlines()
    except UnicodeDecodeError:
        raise BadPatternFile(path, 1, f"expected lines of text, `{_SHAPE}` each") from None
    found = []
    for number, line in enumerate(lines, 1):
        words = line.split("#", 1)[0].split()
        if words:
            found.append(_request(path, number, words, counts))
    if not found:
        raise BadPatternFile(path, max(len(lines), 1), f"no requests: expected lines `{_SHAPE}`")
    return Pattern(*np.array(found, np.int64).T.copy())


def _request(
    path: str | Path, number: int, words: list[str], counts: list[tuple[str, int]]
) -> tuple[int, ...]:
    kind = _KINDS.get(words[0])
    if kind is None:
        raise BadPatternFile(path, number, f"begins with {words[0]!r}, expected R or W")
    if len(words) != len(counts) + 1:
        problem = f"{len(words) - 1} numbers, expected {len(counts)}: `{_SHAPE}`"
        raise BadPatternFile(path, number, problem)
    try:
        values = tuple(map(int, words[1:]))
    except ValueError:
        wrong = next(word for word in words[1:] if not word.lstrip("+-").isdecimal())
        raise BadPatternFile(path, number, f"{wrong!r} is no whole number") from None
    for value, (name, count) in zip(values, counts, strict=True):
        if not 0 <= value < count:
            more = " (--ranks says how many there are)" if name == "rank" else ""
            problem = f"{name} is {value}, expected 0 to {count - 1}{more}"
            raise BadPatternFile(path, number, problem)
    return (kind, *values)
