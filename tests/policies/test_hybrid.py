"""Are hybrid's timelines filled as HybriMoE says? Compared with an account that searches for the
next turn every time, and the rules behind one number each with the schedules they belong to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from drawn_work import costs, naive_best, work_of, works
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.policies.rule_calls import schedule_rule
from moesaic.policies.schedule import schedules
from moesaic.policies.schedule.assignment import delay_by_link, layer_finish
from moesaic.policies.schedule.base import CompiledSchedule, Work, served_as
from moesaic.policies.schedule.gpu_only import gpu_only
from moesaic.policies.schedule.hybrid import (
    fill_timelines,
    hybrid,
    trivial_ends,
    wait_for_coming,
)
from moesaic.policies.schedule.hybrid_bound import cpu_rests, earliest_end
from moesaic.policies.schedule.static import static_experts
from moesaic.policies.timelines import (
    ABSENT,
    CPU_FIRST,
    CPU_FREE,
    GPU_FREE,
    LINK_FREE,
    MOVED,
    ON_CPU,
    ON_GPU,
    READY,
    TRANSFER,
    Ints,
    finish_time,
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


# Is `hybrid` never earlier than its bound says, and does it end when its lanes do?


def ends_with(work: Work, column: int, arrival: int) -> tuple[int, int]:
    """When the layer ends if this missing expert arrives then, and the bound on that."""
    gpu, cpu = costs(work)
    ready = work.table[READY, : work.n].copy()
    rests, kind, spare = (np.zeros(work.n, dtype=np.int64) for _ in range(3))
    missing = cpu_rests(ready, cpu, work.n, rests)
    rank = int((ready[:column] == ABSENT).sum())
    bound = earliest_end(rests, missing, rank, int(cpu[column]), int(gpu.min()), work.lanes)
    ready[column] = arrival
    return hybrid(kind, ready, gpu, cpu, work.lanes, work.n, spare), bound


@settings(max_examples=1000)
@given(works(most=14), st.sampled_from([0, 0, 1, 30, 200]), st.integers(0, 90))
def test_hybrid_is_never_earlier_than_its_bound(work: Work, arrival: int, link: int) -> None:
    work.lanes[LINK_FREE] = max(work.lanes[LINK_FREE], link)
    for column in np.flatnonzero(work.table[READY, : work.n] == ABSENT):
        end, bound = ends_with(work, int(column), arrival)
        assert bound <= end


def test_where_cpu_and_link_decide_alone_the_bound_is_the_end() -> None:
    """Six experts of 100 each on the CPU, a transfer takes 150, the GPU 1. With one of them there,
    the CPU begins at 0, 100 and 200 and the link at 0 and 150: then none of the five is left."""
    work = work_of([1] * 6, [ABSENT] * 6, gpu=lambda t: 1, cpu=lambda t: 100, transfer=150)
    for column in range(6):
        assert ends_with(work, column, 0) == (301, 300 + 1)


@settings(max_examples=400)
@given(works(most=14))
def test_ends_are_those_of_the_lanes(work: Work) -> None:
    gpu, cpu = costs(work)
    ready = work.table[READY, : work.n].copy()
    kind, spare = np.zeros(work.n, dtype=np.int64), np.zeros(work.n, dtype=np.int64)
    inputs = (ready, gpu, cpu, work.lanes, work.n)

    def end_of(kind: Ints) -> int:
        return finish_time(kind, *inputs)

    assert fill_timelines(kind, *inputs, spare) == end_of(kind)
    assert hybrid(kind, *inputs, spare) == end_of(kind)
    ends = []
    for rule in (static_experts, wait_for_coming, gpu_only):
        rule(kind, ready, work.n)
        ends.append(end_of(kind))
    missing = int((ready == ABSENT).sum())
    if work.lanes[LINK_FREE] + missing * work.lanes[TRANSFER] >= ends[0]:
        ends[2] = ends[0]  # the link takes longer: not worked out
    assert trivial_ends(kind, *inputs) == tuple(ends)


# A worked example in the spirit of HybriMoE's Fig. 5. An expert takes 1 unit on the GPU whatever
# its load, 1 unit per token on the CPU, and 3 units over the link.
#
#     expert   A  B  F  E | C  D
#     load     4  3  3  1 | 5  2
#     cached   yes        | no
#
# Cached on the GPU and the rest on the CPU takes 5 + 2 = 7. Everything on the GPU takes 7: D
# arrives at 6. Moving C but leaving all cached experts to the GPU takes 5: A B F E until 4, then C.
# The best takes 4: the link brings C by 3, the GPU does A B F until 3 and C until 4, the CPU does
# D and then the cached E until 3. Nothing is faster (C alone needs 5 on the CPU and 3 + 1 on the
# GPU) and nothing else is as fast: within 4 units the GPU has room for three experts beside C, D
# cannot arrive, and the CPU has 2 units left beside D, enough for E only.

C, A, B, F, D, E = range(6)  # by falling load


@pytest.fixture
def example() -> Work:
    return work_of(
        loads=[5, 4, 3, 3, 2, 1],
        ready=[ABSENT, 0, 0, 0, ABSENT, 0],
        gpu=lambda t: 1,
        cpu=lambda t: t,
        transfer=3,
    )


@pytest.mark.parametrize(
    ("schedule", "units"), [("static-experts", 7), ("static-layers", 7), ("gpu-only", 7)]
)
def test_the_simple_schedules_take_what_the_arithmetic_says(
    example: Work, schedule: str, units: int
) -> None:
    assert schedules.create(schedule).assign(example).believed_ns == units


def test_fiddler_judges_each_expert_alone(example: Work) -> None:
    """C: 5 on the CPU against 3 + 1, so it moves; D: 2 against 4, so it stays."""
    found = schedules.create("threshold").assign(example)
    assert (found.moved, found.cpu, found.believed_ns) == ((C,), (D,), 5)


@pytest.mark.parametrize(("load", "on_cpu"), [(4, True), (5, False)])
def test_fiddler_counts_the_transfer_and_the_gpu(load: int, on_cpu: bool) -> None:
    """3 + 1 over the link and on the GPU against 1 per token on the CPU; a draw stays there."""
    work = work_of([load], [ABSENT], lambda t: 1, lambda t: t, transfer=3)
    assert bool(schedules.create("threshold").assign(work).cpu) is on_cpu


@pytest.mark.parametrize("schedule", ["hybrid", "best-split", "optimal"])
def test_the_cpu_computes_a_cached_expert_while_the_gpu_takes_an_uncached_one(
    example: Work, schedule: str
) -> None:
    found = schedules.create(schedule).assign(example)
    assert found.believed_ns == 4
    assert found.moved == (C,)
    assert set(found.cpu) == {D, E}
    assert set(found.gpu) == {A, B, F, C}
    assert found.gpu[-1] == C


def test_four_units_are_the_best(example: Work) -> None:
    assert naive_best(example) == 4
