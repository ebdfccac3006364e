"""Random choices that are the same in every Python version.

Only `Random.random()` is promised to give the same sequence for the same seed for ever, so
everything is drawn from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


def pick(rng: Random, options: Sequence[T]) -> T:
    return options[int(rng.random() * len(options))]


def between(rng: Random, low: int, high: int) -> int:
    """A whole number from low to high, both included."""
    return low + int(rng.random() * (high - low + 1))


def several(rng: Random, options: Sequence[T], count: int) -> list[T]:
    """Different ones, in random order. Meant for few out of many, or all of few."""
    assert count <= len(options), (count, len(options))
    if count * 3 > len(options):
        return shuffled(rng, options)[:count]
    chosen: list[int] = []
    while len(chosen) < count:
        index = int(rng.random() * len(options))
        if index not in chosen:
            chosen.append(index)
    return [options[index] for index in chosen]


def shuffled(rng: Random, options: Sequence[T]) -> list[T]:
    mixed = list(options)
    for last in range(len(mixed) - 1, 0, -1):
        other = int(rng.random() * (last + 1))
        mixed[last], mixed[other] = mixed[other], mixed[last]
    return mixed
