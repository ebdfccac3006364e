"""HybriMoE's schedule (section IV-B): three timelines, filled step by step.

At each step the lane that is free first acts: the GPU takes the cached expert with the highest
load, the CPU the missing one with the lowest (or, when none is left, the cached one with the
lowest), the link moves the missing one with the highest, which joins the GPU's queue by load
when it arrives. Greedy filling may end later than doing nothing clever, so the result is kept
only when it beats the trivial assignments."""

from __future__ import annotations

from moesaic.policies.compiled import compiled
from moesaic.policies.schedule.base import HYBRID, CompiledSchedule
from moesaic.policies.schedule.gpu_only import gpu_only
from moesaic.policies.schedule.static_experts import static_experts
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
    finish_time,
)

_OPEN = 3  # not decided yet


@compiled
def _for_gpu(arrival: Ints, gpu_end: int, n: int) -> int:
    """The highest load that has arrived by the time the GPU is free, else the next to arrive."""
    found = -1
    for i in range(n):
        if arrival[i] == ABSENT:
            continue
        if arrival[i] <= gpu_end:
            return i
        if found < 0 or arrival[i] < arrival[found]:
            found = i
    return found


@compiled
def _for_cpu(kind: Ints, ready: Ints, n: int, missing: bool) -> int:
    """The undecided expert with the lowest load: a missing one while there are any."""
    for i in range(n - 1, -1, -1):
        if kind[i] == _OPEN and (ready[i] == ABSENT) == missing:
            return i
    return -1


@compiled
def _for_link(kind: Ints, ready: Ints) -> int:
    """The undecided missing expert with the highest load; the caller knows there is one."""
    i = 0
    while kind[i] != _OPEN or ready[i] != ABSENT:
        i += 1
    return i


@compiled
def fill_timelines(
    kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, arrival: Ints
) -> None:
    """The simulation phase: until every expert is computed, the lane that is free first acts.

    `arrival` (scratch) says since when an expert waits in the GPU's queue."""
    gpu_end, cpu_end, link_end = lanes[GPU_FREE], lanes[CPU_FREE], lanes[LINK_FREE]
    first = lanes[CPU_FIRST]
    missing = 0
    for i in range(n):
        kind[i] = _OPEN
        arrival[i] = ready[i]
        missing += ready[i] == ABSENT
    left = n
    while left > 0:
        i = _for_gpu(arrival, gpu_end, n)
        j = _for_cpu(kind, ready, n, missing > 0)
        gpu_at = max(gpu_end, arrival[i]) if i >= 0 else gpu_end
        gpu_first = i >= 0 and (j < 0 or gpu_at <= cpu_end)
        if gpu_first and (missing == 0 or gpu_at <= link_end):
            gpu_end = gpu_at + gpu[i]
            kind[i] = MOVED if kind[i] == MOVED else ON_GPU
            arrival[i] = ABSENT
            left -= 1
        elif missing > 0 and link_end < cpu_end:
            moved = _for_link(kind, ready)
            link_end += lanes[TRANSFER]
            arrival[moved] = link_end
            kind[moved] = MOVED
            missing -= 1
        else:
            cpu_end += cpu[j] + first
            first *= 0
            kind[j] = ON_CPU
            arrival[j] = ABSENT
            missing -= ready[j] == ABSENT
            left -= 1


@compiled
def wait_for_coming(kind: Ints, ready: Ints, n: int) -> None:
    """Static experts, but what is under way is waited for."""
    for i in range(n):
        kind[i] = ON_CPU if ready[i] == ABSENT else ON_GPU


@compiled
def hybrid(kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, spare: Ints) -> int:
    """The filled timelines, unless a trivial assignment ends earlier."""
    static_experts(kind, ready, n)
    static_end = finish_time(kind, ready, gpu, cpu, lanes, n)
    wait_for_coming(kind, ready, n)
    wait_end = finish_time(kind, ready, gpu, cpu, lanes, n)
    gpu_only(kind, ready, n)
    gpu_only_end = finish_time(kind, ready, gpu, cpu, lanes, n)
    fill_timelines(kind, ready, gpu, cpu, lanes, n, spare)
    filled_end = finish_time(kind, ready, gpu, cpu, lanes, n)
    best = min(filled_end, static_end, wait_end, gpu_only_end)
    if best == filled_end:
        return best
    if best == static_end:
        static_experts(kind, ready, n)
    elif best == wait_end:
        wait_for_coming(kind, ready, n)
    else:
        gpu_only(kind, ready, n)
    return best


class Hybrid(CompiledSchedule):
    rule = HYBRID
