"""What a schedule is asked and what it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from moesaic.core.view import View
from moesaic.policies.belief import Belief
from moesaic.policies.records import SCRATCH_ROWS
from moesaic.policies.rule_calls import Rule, schedule_rule
from moesaic.policies.schedule.assignment import assign
from moesaic.policies.timelines import MOVED, ON_CPU, Ints, finish_time, gpu_order


@dataclass(slots=True)
class Work:
    """One layer's active experts, highest load first, and what each costs; see timelines.py."""

    layer: int
    n: int
    table: Ints  # rows EXPERT, LOAD, READY; columns 0 to n - 1 are in use
    lanes: Ints
    belief: Belief
    view: View | None = None  # where everything lies, for who looks beyond GPU, CPU and link


class Assignment(NamedTuple):
    """Experts per device in order, and those to be transferred for the GPU, in order. `others` are
    the queues of further devices; `parts` as in a plan."""

    gpu: tuple[int, ...]
    cpu: tuple[int, ...]
    moved: tuple[int, ...]
    believed_ns: int
    others: Mapping[str, tuple[int, ...]] = {}
    parts: Mapping[int, Mapping[str, int]] = {}


def served_as(work: Work, kind: Sequence[int] | Ints) -> Assignment:
    """The assignment in which the i-th active expert of the work is served as `kind[i]` says
    (ON_GPU, ON_CPU or MOVED): queues in the usual orders, and when that would end."""
    n, lanes = work.n, work.lanes
    experts, loads, ready = work.table[:, :n]
    gpu, cpu = work.belief.tables[0, loads], work.belief.tables[1, loads]
    kinds = np.asarray(kind, dtype=np.int64)
    order, scratch = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    on_gpu = gpu_order(kinds, ready, gpu, lanes, n, order, scratch)
    return Assignment(
        tuple(experts[order[:on_gpu]].tolist()),
        tuple(experts[kinds == ON_CPU][::-1].tolist()),
        tuple(experts[kinds == MOVED].tolist()),
        int(finish_time(kinds, ready, gpu, cpu, lanes, n)),
    )


class Schedule(ABC):
    """Decides one layer at a time; keeps no state, so equal work gives equal assignments.

    `expected_rule` is the compiled rule by which others (prefetching) value a layer under this
    schedule; None stands for `hybrid`'s. `fill` names the initial placement it wants,
    `needs_slots` whether it can do without GPU memory for experts, `needs_units` whether it is made
    for DIMMs that compute, `dense_follows` whether attention and shared experts run where the
    layer's experts are, `decides` whether anything is weighed at run time: a static rule looks up
    where an expert lies, which costs nothing worth charging. `sees_contention`: it counts that the
    CPU is slower while the link copies, and so does the look-ahead then."""

    expected_rule: Rule | None = None
    fill: str = "popular"
    needs_slots: bool = False
    needs_units: bool = False
    dense_follows: bool = False
    decides: bool = True
    sees_contention: bool = False

    @abstractmethod
    def assign(self, work: Work) -> Assignment: ...


class CompiledSchedule(Schedule):
    """A schedule whose decision is a compiled `rule` (rule_calls.py). Where there is no
    `expected_rule`, layers are valued by the same."""

    rule: Rule

    def __init__(self) -> None:
        self._scratch = np.zeros((SCRATCH_ROWS, 0), dtype=np.int64)

    def assign(self, work: Work) -> Assignment:
        n = work.n
        assert n == 0 or work.table[1, 0] < work.belief.tables.shape[1], "no cost for such a load"
        if self._scratch.shape[1] < n + 4:
            self._scratch = np.zeros((SCRATCH_ROWS, n + 64), dtype=np.int64)
        scratch = self._scratch
        rule = schedule_rule(self.rule)
        assign(rule, n, work.table, work.belief.tables, work.lanes, scratch)
        gpu, cpu, moved, counts = scratch[:4, : n + 4].tolist()
        return Assignment(
            tuple(gpu[: counts[0]]), tuple(cpu[: counts[1]]), tuple(moved[: counts[2]]), counts[3]
        )
