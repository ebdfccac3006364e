"""Are hybrid's timelines filled as HybriMoE says? Compared with an account that searches for the
next turn every time, and the rules behind one number each with the schedules they belong to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from drawn_work import costs, work_of, works
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.policies.rule_calls import schedule_rule
from moesaic.policies.schedule import schedules
from moesaic.policies.schedule.assignment import delay_by_link, layer_finish
from moesaic.policies.schedule.base import CompiledSchedule, Work, served_as
from moesaic.policies.schedule.hybrid import fill_timelines, hybrid
from moesaic.policies.timelines import (
    ABSENT,
    CPU_FIRST,
    CPU_FREE,
    GPU_FREE,
    LINK_FREE,
    MOVED,
    ON_CPU,
    ON_GPU,
    TRANSFER,
    Ints,
)

# A decision of best-split is improved further, which valuing a later layer does not pay for.
COMPILED = [
    name
    for name in schedules
    if issubclass(schedules.load(name), CompiledSchedule) and name != "best-split"
]


class _Filling:
    """The simulation phase of HybriMoE section IV-B, word by word."""

    def __init__(self, work: Work) -> None:
        self.gpu, self.cpu = (cost.tolist() for cost in costs(work))
        self.ready = work.table[2, : work.n].tolist()
        lanes = work.lanes.tolist()
        self.gpu_end, self.cpu_end, self.link_end = (
            lanes[GPU_FREE], lanes[CPU_FREE], lanes[LINK_FREE],
        )  # fmt: skip
        self.first, self.transfer = lanes[CPU_FIRST], lanes[TRANSFER]
        self.missing = [i for i, ready in enumerate(self.ready) if ready == ABSENT]
        self.queue = {i: ready for i, ready in enumerate(self.ready) if ready != ABSENT}
        self.kind: dict[int, int] = {}  # of what is computed
        self.moved: set[int] = set()

    def kinds(self) -> list[int]:
        while len(self.kind) < len(self.ready):
            self._turn()
        return [self.kind[i] for i in range(len(self.ready))]

    def _turn(self) -> None:
        """Whose turn it is: the lane that is free first; at a tie the GPU, then the CPU."""
        mine = min(self.queue, key=self._gpu_order, default=None)
        others = self.missing or [i for i in self.queue if i not in self.moved]
        start = None if mine is None else max(self.gpu_end, self.queue[mine])
        links = [self.link_end] if self.missing else []
        cpus = [self.cpu_end] if others else []
        if mine is not None and start is not None and all(start <= t for t in links + cpus):
            self.gpu_end = start + self.gpu[mine]
            self.kind[mine] = MOVED if mine in self.moved else ON_GPU
            del self.queue[mine]
        elif links and self.link_end < self.cpu_end:
            brought = self.missing.pop(0)
            self.link_end += self.transfer
            self.queue[brought] = self.link_end
            self.moved.add(brought)
        else:
            taken = max(others)
            self.cpu_end += self.cpu[taken] + self.first
            self.first = 0
            self.kind[taken] = ON_CPU
            self.queue.pop(taken, None)
            self.missing = [i for i in self.missing if i != taken]

    def _gpu_order(self, i: int) -> tuple[int, int]:
        """What has arrived when the GPU is free, by load; else the next to arrive."""
        return max(self.queue[i] - self.gpu_end, 0), i


def _filled(work: Work, rule: Callable[..., object]) -> list[int]:
    gpu, cpu = costs(work)
    kind, spare = (np.full(work.n, 9, dtype=np.int64) for _ in range(2))
    rule(kind, work.table[2, : work.n].copy(), gpu, cpu, work.lanes, work.n, spare)
    found: list[int] = kind.tolist()
    return found


@settings(max_examples=250)
@given(works(most=8))
def test_timelines_are_filled_turn_by_turn(work: Work) -> None:
    assert _filled(work, fill_timelines) == _Filling(work).kinds()


@settings(max_examples=150)
@given(works(most=8))
def test_hybrid_is_the_best_of_the_filled_and_the_trivial_assignments(work: Work) -> None:
    ready = work.table[2, : work.n]
    options = [
        _Filling(work).kinds(),
        np.where(ready == 0, ON_GPU, ON_CPU).tolist(),
        np.where(ready == ABSENT, ON_CPU, ON_GPU).tolist(),
        np.where(ready == ABSENT, MOVED, ON_GPU).tolist(),
    ]
    ends = [served_as(work, kind).believed_ns for kind in options]
    assert schedules.create("hybrid").assign(work).believed_ns == min(ends)
    assert served_as(work, _filled(work, hybrid)).believed_ns == min(ends)


def test_what_is_under_way_is_waited_for_where_that_is_best() -> None:
    """Filled turn by turn, the CPU takes the expert that arrives at 30; waiting ends at 40."""
    work = work_of([2, 1], [0, 30], lambda t: 10, lambda t: 45, transfer=100)
    found = schedules.create("hybrid").assign(work)
    assert (found.gpu, found.cpu, found.believed_ns) == ((0, 1), (), 40)


def _scratch() -> Ints:
    return np.full((4, 16), 77, dtype=np.int64)  # what is left from other layers must not matter


@pytest.mark.parametrize("name", COMPILED)
@settings(max_examples=40)
@given(work=works(most=8), late=st.integers(1, 200))
def test_a_layers_end_by_number_is_that_of_the_schedule(name: str, work: Work, late: int) -> None:
    """And what lateness of the link costs it is the difference of two of them."""
    schedule = schedules.create(name)
    given_lanes = work.lanes.copy()
    assert isinstance(schedule, CompiledSchedule)
    rule = schedule_rule(schedule.expected_rule or schedule.rule)
    inputs = rule, work.n, work.table, work.belief.tables, work.lanes
    assert layer_finish(*inputs, _scratch()) == schedule.assign(work).believed_ns
    delay = delay_by_link(*inputs, late, _scratch())
    assert work.lanes.tolist() == given_lanes.tolist(), "lanes are as they were"
    ends = []
    for free in (late, 0):
        work.lanes[LINK_FREE] = free
        ends.append(schedule.assign(work).believed_ns)
    assert delay == ends[0] - ends[1]
