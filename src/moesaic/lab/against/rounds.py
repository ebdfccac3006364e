"""Contenders take turns by rounds of processes: each runs alone, and ratios are taken within a
round, because a shared machine may be several times slower for a while."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

Rates = dict[str, float]  # tokens per second by test, as in pp512


class Contender(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def words(self) -> str:
        """What it runs, for a reader."""

    def turn(self) -> Rates:
        """Every test once, in a process of its own."""


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class AgainstRow:
    test: str
    name: str
    tokens_per_s: Spread
    times: Spread | None  # ours over theirs, within rounds; None: it is ours


def take_turns(
    contenders: Sequence[Contender],
    rounds: int,
    advance: Callable[[int], None] = lambda turns: None,
) -> list[dict[str, Rates]]:
    """The rates of every round by contender; `advance(1)` is called after each turn."""
    done = []
    for _ in range(rounds):
        found = {}
        for one in contenders:
            found[one.name] = one.turn()
            advance(1)
        done.append(found)
    return done


def rows_of(rounds: Sequence[dict[str, Rates]], ours: str) -> list[AgainstRow]:
    """Test by test, ours first."""
    first = rounds[0]
    return [
        AgainstRow(
            test,
            name,
            Spread.of([found[name][test] for found in rounds]),
            None
            if name == ours
            else Spread.of([found[ours][test] / found[name][test] for found in rounds]),
        )
        for test in first[ours]
        for name in first
    ]
