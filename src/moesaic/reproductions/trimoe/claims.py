"""A row to be: what must be computed for it, and how it follows from that."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple, Protocol

from moesaic.reproductions.row import Row
from moesaic.reproductions.trimoe.paper import BASELINES
from moesaic.reproductions.trimoe.runs import Outcome, Run


class Item(Protocol):
    """Something to compute, in any process, as a `Run` is; equal ones are computed once. Items of
    the same `group` share routing and are computed one after another in one process."""

    @property
    def group(self) -> object: ...

    def execute(self) -> Any: ...


Done = Mapping[Any, Any]  # items -> what they gave


class Claim(NamedTuple):
    id: str
    items: tuple[Any, ...]
    row: Callable[[Done], Row]


def again(name: str, traces: str | None = None) -> str:
    """The command that gives this row again."""
    words = ["moesaic", "reproduce", "trimoe", "--only", name]
    return shlex.join([*words, "--traces", traces] if traces else words)


def plain(
    name: str,
    claim: str,
    paper: float | None,
    unit: str,
    conditions: str,
    items: tuple[Any, ...],
    value: Callable[[Done], float],
    traces: str | None = None,
) -> Claim:
    def row(done: Done) -> Row:
        return Row(name, claim, paper, value(done), unit, conditions, again(name, traces))

    return Claim(name, items, row)


def outcome(done: Done, run: Run) -> Outcome:
    found = done[run]
    assert isinstance(found, Outcome)
    return found


class Cell(NamedTuple):
    """A system and the baselines it is compared with, under the same conditions."""

    run: Run
    baselines: tuple[Run, ...]

    @classmethod
    def of(cls, run: Run, baselines: tuple[str, ...] = BASELINES) -> Cell:
        return cls(run, tuple(replace(run, system=name) for name in baselines))

    @property
    def items(self) -> tuple[Run, ...]:
        return (self.run, *self.baselines)

    def best(self, done: Done) -> Run:
        """The fastest baseline."""
        return min(self.baselines, key=lambda run: outcome(done, run).layer_ms)

    def speedup(self, done: Done) -> float:
        """The speedup of the MoE layer over the best baseline."""
        return outcome(done, self.best(done)).layer_ms / outcome(done, self.run).layer_ms


def over_best(
    name: str, claim: str, paper: float | None, cells: list[Cell], traces: str | None = None
) -> Claim:
    """The mean of speedups over the best baseline of each cell."""

    def row(done: Done) -> Row:
        gains = [cell.speedup(done) for cell in cells]
        best = sorted({cell.best(done).system for cell in cells})
        text = f"MoE layer in decode, over the best of the baselines ({', '.join(best)})"
        if len(gains) > 1:
            text += f", mean of {len(gains)} from {min(gains):.2f} to {max(gains):.2f}"
        times = outcome(done, cells[0].run).spread
        text += (
            f"; {cells[0].run.words}; layer from {min(times):.2f} to {max(times):.2f} ms by step"
        )
        return Row(name, claim, paper, fmean(gains), "x", text, again(name, traces))

    return Claim(name, tuple(run for cell in cells for run in cell.items), row)
