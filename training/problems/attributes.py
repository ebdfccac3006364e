"""What can be compared: an attribute with its unit, its words in both directions, its sayings.

They are blocks in data/attributes/, one file for each family:

    == height
    which: who                      or "which mountain"
    of: people                      a pool, see pools.py
    size: 90..199 cm
    more: taller, tallest, tall     the words for the larger number, and below for the smaller
    less: shorter, shortest, short
    title: the heights in cm
    says: {} is {n} cm tall         several lines: wordings
    gap: no                         "how many balls fuller?" is not asked
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import NamedTuple

from training.problems.draws import limits
from training.problems.pools import POOLS, Pool
from training.problems.reader import blocks


class Degrees(NamedTuple):
    more: str  # taller
    most: str  # tallest
    plain: str  # tall


class Attribute(NamedTuple):
    which: str
    verb: str
    pool: Pool
    sizes: tuple[int, ...]
    unit: str
    up: Degrees
    down: Degrees
    title: str
    says: tuple[str, ...]
    gap: bool


@cache
def family(name: str) -> tuple[Attribute, ...]:
    file = files("training.problems") / "data" / "attributes" / f"{name}.txt"
    return tuple(_attribute(lines) for _, lines in blocks(file.read_text(encoding="ascii")))


def _attribute(lines: list[tuple[str, str]]) -> Attribute:
    once = dict(lines)
    size, _, unit = once.get("size", "2..9 points").partition(" ")
    low, high = limits(size)
    return Attribute(
        once["which"],
        once.get("verb", "is"),
        POOLS[once["of"]],
        tuple(range(low, high + 1)),
        unit,
        Degrees(*once["more"].split(", ")),
        Degrees(*once["less"].split(", ")),
        once.get("title", ""),
        tuple(said for word, said in lines if word == "says"),
        once.get("gap", "yes") == "yes",
    )
