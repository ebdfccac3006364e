"""Is `hybrid` never earlier than its bound says, and does it end when its lanes do?"""

from __future__ import annotations

import numpy as np
from drawn_work import costs, work_of, works
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.policies.schedule.base import Work
from moesaic.policies.schedule.gpu_only import gpu_only
from moesaic.policies.schedule.hybrid import (
    fill_timelines,
    hybrid,
    trivial_ends,
    wait_for_coming,
)
from moesaic.policies.schedule.hybrid_bound import cpu_rests, earliest_end
from moesaic.policies.schedule.static import static_experts
from moesaic.policies.timelines import ABSENT, LINK_FREE, READY, TRANSFER, Ints, finish_time


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
