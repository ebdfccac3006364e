"""Layers to be scheduled, drawn at random or stated, and a slow, naive account of their lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations, product

import numpy as np
from hypothesis import strategies as st

from moesaic.policies.belief import Belief
from moesaic.policies.schedule.base import Work
from moesaic.policies.timelines import (
    ABSENT,
    CPU_FIRST,
    CPU_FREE,
    CPU_SLOWED,
    GPU_FREE,
    LINK_FREE,
    NUM_LANES,
    TRANSFER,
    Ints,
    cpu_finish,
)


def work_of(
    loads: Sequence[int],
    ready: Sequence[int],
    gpu: Callable[[int], int],
    cpu: Callable[[int], int],
    transfer: int,
    first: int = 0,
    gpu_free: int = 0,
    cpu_free: int = 0,
    link_free: int | None = None,
) -> Work:
    """Expert i has `loads[i]` tokens (falling) and is on the GPU at `ready[i]`; the link is busy
    until what is under way has arrived, if not said otherwise."""
    assert sorted(loads, reverse=True) == list(loads), "experts are sorted by load"
    most = max(loads)
    tables = np.array([[0, *(cost(t) for t in range(1, most + 1))] for cost in (gpu, cpu)])
    lanes = np.zeros(NUM_LANES, dtype=np.int64)
    lanes[GPU_FREE], lanes[CPU_FREE] = gpu_free, cpu_free
    lanes[LINK_FREE] = max(0, *ready) if link_free is None else link_free
    lanes[CPU_FIRST], lanes[TRANSFER] = first, transfer
    table = np.array([list(range(len(loads))), list(loads), list(ready)], dtype=np.int64)
    belief = Belief(tables.astype(np.int64), first, transfer)
    return Work(0, len(loads), table, lanes, belief)


@st.composite
def works(draw: st.DrawFn, least: int = 1, most: int = 10, late: bool = True) -> Work:
    """Up to four experts are under way, in any order. The link is free for others when they have
    arrived, or earlier, as in layers that the look-ahead values."""
    n = draw(st.integers(least, most))
    loads = sorted(draw(st.lists(st.integers(1, 20), min_size=n, max_size=n)), reverse=True)
    ready = draw(st.lists(st.sampled_from([0, ABSENT]), min_size=n, max_size=n))
    for _ in range(draw(st.integers(0, 4)) if late else 0):
        ready[draw(st.integers(0, n - 1))] = draw(st.integers(1, 120))
    fixed, slope = draw(st.integers(1, 30)), draw(st.integers(0, 5))
    cpu_fixed, cpu_slope = draw(st.integers(0, 60)), draw(st.integers(0, 30))
    return work_of(
        loads,
        ready,
        gpu=lambda t: fixed + slope * t,
        cpu=lambda t: cpu_fixed + cpu_slope * t,
        transfer=draw(st.integers(1, 150)),
        first=draw(st.sampled_from([0, 0, 25])),
        gpu_free=draw(st.sampled_from([0, 0, 40])),
        cpu_free=draw(st.sampled_from([0, 0, 90])),
        link_free=draw(st.sampled_from([None, None, 0, 30])),
    )


def costs(work: Work) -> tuple[Ints, Ints]:
    loads = work.table[1, : work.n]
    return work.belief.tables[0, loads], work.belief.tables[1, loads]


def naive_best(work: Work) -> int:
    """The least makespan over every assignment and every order of every lane, the CPU slowed as
    long as the link is busy."""
    on_cpu = product((False, True), repeat=work.n)
    return min(_best_orders(work, choice) for choice in on_cpu)


def _best_orders(work: Work, on_cpu: tuple[bool, ...]) -> int:
    ready = work.table[2, : work.n]
    gpu, cpu = costs(work)
    mine = [i for i in range(work.n) if not on_cpu[i]]
    moved = [i for i in mine if ready[i] == ABSENT]
    cpu_end = 0
    if any(on_cpu):
        total = sum(int(cpu[i]) for i in range(work.n) if on_cpu[i]) + int(work.lanes[CPU_FIRST])
        link_end = int(work.lanes[LINK_FREE] + len(moved) * work.lanes[TRANSFER])
        cpu_end = cpu_finish(
            int(work.lanes[CPU_FREE]), total, link_end, int(work.lanes[CPU_SLOWED])
        )
    best = None
    for link in permutations(moved):
        arrival = {i: int(ready[i]) for i in mine}
        for place, i in enumerate(link, start=1):
            arrival[i] = int(work.lanes[LINK_FREE] + place * work.lanes[TRANSFER])
        for order in permutations(mine):
            now = int(work.lanes[GPU_FREE])
            for i in order:
                now = max(now, arrival[i]) + int(gpu[i])
            best = now if best is None else min(best, now)
    assert best is not None
    return max(best, cpu_end)
