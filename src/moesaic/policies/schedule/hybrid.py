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
def _among_coming(arrival: Ints, ready: Ints, gpu_end: int, n: int, found: int) -> int:
    """What the GPU takes next, if that may also be an expert that was under way when the layer
    began: `found` (n: nobody) is the best of the others."""
    for i in range(n if found == n or arrival[found] > gpu_end else found):
        if ready[i] > 0 and arrival[i] != ABSENT:
            if arrival[i] <= gpu_end:
                return i
            sooner = found == n or arrival[i] < arrival[found]
            if sooner or (arrival[i] == arrival[found] and i < found):
                found = i
    return found


@compiled  # in one piece: a call per turn takes longer than the turn
def fill_timelines(  # noqa: PLR0912, PLR0915
    kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, arrival: Ints
) -> None:
    """The simulation phase: until every expert is computed, the lane that is free first acts.

    `arrival` (scratch) says since when an expert waits in the GPU's queue. Who is next in each
    line only moves on, so the lines are followed instead of searched."""
    gpu_end, cpu_end, link_end = lanes[GPU_FREE], lanes[CPU_FREE], lanes[LINK_FREE]
    first = lanes[CPU_FIRST]
    missing = 0
    coming = 0
    for i in range(n):
        kind[i] = _OPEN
        arrival[i] = ready[i]
        missing += ready[i] == ABSENT
        coming += ready[i] > 0
    # Fronts of the lines. Of what was moved, the first is both the highest load and the first to
    # arrive; what was there from the beginning has arrived.
    cached, moved, next_move = 0, n, 0
    last_missing, last_cached = n - 1, n - 1  # the CPU's lines are followed from the end
    left = n
    while left > 0:
        while cached < n and not (ready[cached] == 0 and arrival[cached] == 0):
            cached += 1
        while moved < n and not (kind[moved] == MOVED and arrival[moved] != ABSENT):
            moved += 1
        # The highest load that has arrived by the time the GPU is free, else the next to arrive.
        i = cached
        if moved < n and (i == n or (moved < i and arrival[moved] <= gpu_end)):
            i = moved
        if coming > 0:
            i = _among_coming(arrival, ready, gpu_end, n, i)
        if missing > 0:
            while kind[last_missing] != _OPEN or ready[last_missing] != ABSENT:
                last_missing -= 1
            j = last_missing
        else:
            while last_cached >= 0 and (kind[last_cached] != _OPEN or ready[last_cached] == ABSENT):
                last_cached -= 1
            j = last_cached
        gpu_at = max(gpu_end, arrival[i]) if i < n else gpu_end
        gpu_first = i < n and (j < 0 or gpu_at <= cpu_end)
        if gpu_first and (missing == 0 or gpu_at <= link_end):
            gpu_end = gpu_at + gpu[i]
            kind[i] = MOVED if kind[i] == MOVED else ON_GPU
            arrival[i] = ABSENT
            coming -= ready[i] > 0
            left -= 1
        elif missing > 0 and link_end < cpu_end:
            while kind[next_move] != _OPEN or ready[next_move] != ABSENT:
                next_move += 1
            link_end += lanes[TRANSFER]
            arrival[next_move] = link_end
            kind[next_move] = MOVED
            moved = min(moved, next_move)
            missing -= 1
        else:
            cpu_end += cpu[j] + first
            first *= 0
            kind[j] = ON_CPU
            arrival[j] = ABSENT
            missing -= ready[j] == ABSENT
            coming -= ready[j] > 0
            left -= 1


@compiled
def wait_for_coming(kind: Ints, ready: Ints, n: int) -> None:
    """Static experts, but what is under way is waited for."""
    for i in range(n):
        kind[i] = ON_CPU if ready[i] == ABSENT else ON_GPU


@compiled
def hybrid(kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, spare: Ints) -> int:
    """The filled timelines, unless a trivial assignment ends earlier."""
    missing = 0
    coming = 0
    for i in range(n):
        missing += ready[i] == ABSENT
        coming += ready[i] > 0
    static_experts(kind, ready, n)
    static_end = wait_end = gpu_only_end = finish_time(kind, ready, gpu, cpu, lanes, n)
    if coming > 0:  # else waiting for nothing is the same
        wait_for_coming(kind, ready, n)
        wait_end = finish_time(kind, ready, gpu, cpu, lanes, n)
    if lanes[LINK_FREE] + missing * lanes[TRANSFER] < static_end:  # else the link takes longer
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
