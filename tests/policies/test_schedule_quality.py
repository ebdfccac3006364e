"""Are the schedules as good as they claim, under their own belief?"""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.schedule_quality import random_layer
from drawn_work import costs, naive_best, work_of, works
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.policies.schedule import schedules
from moesaic.policies.schedule.base import Work
from moesaic.policies.schedule.improve import EXACT, EXCHANGED
from moesaic.policies.schedule.optimal import GAP, Optimal, solve, try_all
from moesaic.policies.schedule.splits import IN_ORDER, best_split
from moesaic.policies.timelines import ABSENT, CPU_SLOWED, finish_time

SCHEDULES = {name: schedules.create(name) for name in schedules}


def believed(name: str, work: Work) -> int:
    return SCHEDULES[name].assign(work).believed_ns


@settings(max_examples=400)
@given(works(most=14))
def test_hybrid_is_never_worse_than_the_trivial_schedules(work: Work) -> None:
    assert believed("hybrid", work) <= min(
        believed("static-experts", work), believed("gpu-only", work)
    )


@settings(max_examples=400)
@given(works(most=14))
def test_best_split_is_never_worse_than_hybrid(work: Work) -> None:
    assert believed("best-split", work) <= believed("hybrid", work)


@settings(max_examples=400)
@given(works(most=EXACT))
def test_best_split_of_few_experts_is_the_optimum(work: Work) -> None:
    assert believed("best-split", work) == believed("optimal", work)


def test_best_split_finds_what_the_orders_of_the_paper_miss() -> None:
    """The CPU takes the cached expert with 12 tokens, and not the highest loads are moved."""
    ready = [ABSENT, ABSENT, ABSENT, 0, ABSENT]
    work = work_of([16, 14, 13, 12, 9], ready, lambda t: 2 * t, lambda t: t, transfer=21)
    gpu, cpu = costs(work)
    kind = np.zeros(5, dtype=np.int64)
    assert (
        best_split(kind, work.table[2], gpu, cpu, work.lanes, 5, IN_ORDER, np.zeros_like(kind))
        == 52
    )
    assert believed("best-split", work) == believed("optimal", work) == 43


@pytest.mark.parametrize("name", ["best-split", "optimal", "hybrid"])
def test_what_is_under_way_is_taken_in_order_of_arrival(name: str) -> None:
    """The one with fewer tokens arrives first: taken at 10 and 60, both end at 80. In order of
    loads they would end at 100, and the CPU would be given one, until 90."""
    work = work_of([2, 1], [60, 10], lambda t: 20, lambda t: 90, transfer=100)
    found = SCHEDULES[name].assign(work)
    assert (found.gpu, found.cpu, found.believed_ns) == ((1, 0), (), 80)


def test_the_gpu_takes_what_is_moved_before_what_arrives_later() -> None:
    """As in a layer that the look-ahead values: moved by 15, the second is done before the first
    arrives at 100."""
    ready = [100, ABSENT]
    work = work_of([2, 1], ready, lambda t: 30, lambda t: 500, transfer=15, link_free=0)
    assert {believed(name, work) for name in ("best-split", "optimal", "hybrid")} == {130}


def test_of_optima_the_one_with_fewest_moves_is_taken() -> None:
    """What is moved keeps the link busy: both on the CPU end at 20, and so does one moved."""
    work = work_of([1, 1], [ABSENT, ABSENT], lambda t: 5, lambda t: 10, transfer=15)
    found = SCHEDULES["optimal"].assign(work)
    assert (found.moved, found.believed_ns) == ((), 20)


def test_of_equal_loads_the_optimum_moves_the_first() -> None:
    """They are sorted by their value where moves cost something."""
    work = work_of([1, 1, 1], [ABSENT] * 3, lambda t: 5, lambda t: 10, transfer=14)
    found = SCHEDULES["optimal"].assign(work)
    assert (found.moved, found.cpu, found.believed_ns) == ((0,), (2, 1), 20)


def test_best_split_of_more_experts_is_within_a_twentieth_of_the_optimum() -> None:
    """With busy lanes and costs of any kind; the split alone is not."""
    rng = np.random.default_rng(4)
    split, improved = [], []
    for number in range(250):
        work = random_layer(rng, EXACT + 1, 13, under_way=1 + 4 * (number % 2))
        best = believed("optimal", work)
        improved.append(believed("best-split", work) / best)
        gpu, cpu = costs(work)
        kind, ready = np.zeros(work.n, dtype=np.int64), work.table[2]
        spare = np.zeros_like(kind)
        found = best_split(kind, ready, gpu, cpu, work.lanes, work.n, IN_ORDER, spare)
        split.append(found / best)
    assert max(improved) <= 1.05
    assert max(split) > 1.05


@settings(max_examples=100)
@given(works(least=EXACT + 1, most=EXCHANGED + 4))
def test_what_best_split_believes_is_when_its_assignment_ends(work: Work) -> None:
    found = SCHEDULES["best-split"].assign(work)
    gpu, cpu = costs(work)
    kind = np.array([1 if e in found.cpu else 2 if e in found.moved else 0 for e in range(work.n)])
    assert found.believed_ns == finish_time(kind, work.table[2], gpu, cpu, work.lanes, work.n)


@settings(max_examples=200)
@given(works(most=10), st.sampled_from([name for name in schedules if name != "optimal"]))
def test_optimal_is_a_bound_for_every_schedule(work: Work, other: str) -> None:
    assert believed("optimal", work) <= believed(other, work)


@settings(max_examples=120)
@given(works(most=4), st.sampled_from([0, 0, 405, 3000]))
def test_optimal_equals_every_assignment_in_every_order(work: Work, slowed: int) -> None:
    work.lanes[CPU_SLOWED] = slowed
    assert believed("optimal", work) == naive_best(work)


@settings(max_examples=60)
@given(works(most=9), st.sampled_from([0, 0, 405, 3000]))
def test_the_solver_finds_what_the_exhaustive_search_finds(work: Work, slowed: int) -> None:
    work.lanes[CPU_SLOWED] = slowed
    gpu, cpu = costs(work)
    order = np.argsort(-gpu, kind="stable")
    ready, gpu, cpu = work.table[2, : work.n][order], gpu[order], cpu[order]
    kind = np.zeros(work.n, dtype=np.int64)
    best = try_all(kind, ready, gpu, cpu, work.lanes, work.n)
    solved = solve(ready, gpu, cpu, work.lanes)
    assert best <= finish_time(solved, ready, gpu, cpu, work.lanes, work.n) <= best * (1 + GAP)


def test_optimal_beyond_exhaustive_search_is_no_worse_than_best_split() -> None:
    rng = np.random.default_rng(3)
    for _ in range(5):
        loads = sorted(rng.integers(1, 30, 24).tolist(), reverse=True)
        ready = rng.choice([0, ABSENT], 24).tolist()
        work = work_of(loads, ready, lambda t: 20 + t, lambda t: 30 + 11 * t, transfer=90)
        assert Optimal().assign(work).believed_ns <= believed("best-split", work)


@pytest.mark.parametrize("name", list(schedules))
@settings(max_examples=60)
@given(work=works(most=10))
def test_every_expert_is_served_once_and_only_missing_ones_move(name: str, work: Work) -> None:
    found = SCHEDULES[name].assign(work)
    assert sorted((*found.gpu, *found.cpu)) == list(range(work.n))
    ready = work.table[2]
    assert all(ready[e] == ABSENT for e in found.moved)
    assert [e for e in found.gpu if ready[e] == ABSENT] == list(found.moved)


@settings(max_examples=100)
@given(works(most=10))
def test_hybrid_follows_the_three_priority_rules(work: Work) -> None:
    """Moved: the highest loads of the missing. The CPU: low loads first, cached ones only the
    lowest. The GPU and the link: high loads first."""
    found = SCHEDULES["hybrid"].assign(work)
    loads, ready = work.table[1], work.table[2]
    missing = [int(loads[e]) for e in found.cpu if ready[e] == ABSENT]
    assert all(loads[e] >= load for e in found.moved for load in missing)
    taken = [int(loads[e]) for e in found.cpu if ready[e] == 0]
    kept = [int(loads[e]) for e in found.gpu if ready[e] == 0]
    assert not taken or not kept or max(taken) <= min(kept)
    assert [loads[e] for e in found.cpu] == sorted(loads[e] for e in found.cpu)
    assert [loads[e] for e in found.moved] == sorted((loads[e] for e in found.moved), reverse=True)
