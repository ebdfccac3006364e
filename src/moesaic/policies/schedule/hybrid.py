"""HybriMoE's schedule (section IV-B): three timelines, filled step by step.

At each step the lane that is free first acts: the GPU takes the cached expert with the highest
load, the CPU the missing one with the lowest (or, when none is left, the cached one with the
lowest), the link moves the missing one with the highest, which joins the GPU's queue by load
when it arrives. Greedy filling may end later than doing nothing clever, so the result is kept
only when it beats the trivial assignments."""

from __future__ import annotations

from moesaic.policies.compiled import compiled
from moesaic.policies.schedule.base import CompiledSchedule
from moesaic.policies.schedule.gpu_only import gpu_only
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
    TRANSFER,
    Ints,
    finish_arrivals,
)

_OPEN = 3  # not decided yet


@compiled
def _open_lines(kind: Ints, ready: Ints, n: int, arrival: Ints) -> tuple[int, int, int, int]:
    """Nothing is decided. Returns how many are missing, how many are coming, and the first and the
    last of those."""
    missing = 0
    coming = 0
    first, last = n, -1
    for i in range(n):
        kind[i] = _OPEN
        arrival[i] = ready[i]
        missing += ready[i] == ABSENT
        if ready[i] > 0:
            coming += 1
            first, last = min(first, i), i
    return missing, coming, first, last


@compiled  # in one piece: a call per turn takes longer than the turn
def fill_timelines(  # noqa: PLR0912, PLR0915
    kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, arrival: Ints
) -> int:
    """The simulation phase: until every expert is computed, the lane that is free first acts.
    Returns when the last lane ends, as `finish_time` would.

    `arrival` (scratch) says since when an expert waits in the GPU's queue. Who is next in each
    line only moves on, so the lines are followed instead of searched."""
    gpu_end, cpu_end, link_end = lanes[GPU_FREE], lanes[CPU_FREE], lanes[LINK_FREE]
    first, cached_end = lanes[CPU_FIRST], lanes[GPU_FREE]  # cached_end: with those alone
    missing, coming, first_coming, last_coming = _open_lines(kind, ready, n, arrival)
    # Fronts of the lines. Of what was moved, the first is both the highest load and the first to
    # arrive; what was there from the beginning has arrived.
    cached, moved, next_move = 0, n, 0
    last_missing, last_cached = n - 1, n - 1  # the CPU's lines are followed from the end
    on_cpu, waited = 0, 0
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
        if coming > 0:  # or one that was under way when the layer began
            last = last_coming if i == n or arrival[i] > gpu_end else min(i - 1, last_coming)
            for c in range(first_coming, last + 1):
                if ready[c] > 0 and arrival[c] != ABSENT:
                    if arrival[c] <= gpu_end:
                        i = c
                        break
                    sooner = i == n or arrival[c] < arrival[i]
                    if sooner or (arrival[c] == arrival[i] and c < i):
                        i = c
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
            if kind[i] != MOVED:
                kind[i] = ON_GPU
                cached_end += gpu[i] if ready[i] == 0 else 0
            arrival[i] = ABSENT
            coming -= ready[i] > 0
            waited += ready[i] > 0
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
            on_cpu += 1
            kind[j] = ON_CPU
            arrival[j] = ABSENT
            missing -= ready[j] == ABSENT
            coming -= ready[j] > 0
            left -= 1
    end = finish_arrivals(cached_end, kind, ready, gpu, lanes, n, waited)
    return int(max(end, cpu_end) if on_cpu else end)


@compiled
def wait_for_coming(kind: Ints, ready: Ints, n: int) -> None:
    """Static experts, but what is under way is waited for."""
    for i in range(n):
        kind[i] = ON_CPU if ready[i] == ABSENT else ON_GPU


@compiled
def trivial_ends(
    kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int
) -> tuple[int, int, int]:
    """`finish_time` of static experts, of waiting for what comes, and of the GPU alone (of static
    experts where the link takes longer than those). `kind` is scratch."""
    cached, cpu_coming, cpu_missing = lanes[GPU_FREE], 0 * lanes[CPU_FREE], 0 * lanes[CPU_FREE]
    missing = 0
    coming = 0
    for i in range(n):
        if ready[i] == 0:
            cached += gpu[i]
        elif ready[i] == ABSENT:
            missing += 1
            cpu_missing += cpu[i]
        else:
            coming += 1
            cpu_coming += cpu[i]
    cpu_start, static, waiting = lanes[CPU_FREE] + lanes[CPU_FIRST], cached, cached
    if missing + coming > 0:
        static = max(cached, cpu_start + cpu_missing + cpu_coming)
    if coming > 0:
        wait_for_coming(kind, ready, n)
        waiting = finish_arrivals(cached, kind, ready, gpu, lanes, n, coming)
    alone = static
    if lanes[LINK_FREE] + missing * lanes[TRANSFER] < static:
        alone = waiting
        if missing > 0:
            gpu_only(kind, ready, n)
            alone = finish_arrivals(cached, kind, ready, gpu, lanes, n, coming)
    if missing > 0:
        waiting = max(waiting, cpu_start + cpu_missing)
    return int(static), int(waiting), int(alone)


@compiled
def hybrid(kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, spare: Ints) -> int:
    """The filled timelines, unless a trivial assignment ends earlier."""
    static, waiting, alone = trivial_ends(kind, ready, gpu, cpu, lanes, n)
    filled = fill_timelines(kind, ready, gpu, cpu, lanes, n, spare)
    best = min(filled, static, waiting, alone)
    if best == filled:
        return best
    if best == static:
        static_experts(kind, ready, n)
    elif best == waiting:
        wait_for_coming(kind, ready, n)
    else:
        gpu_only(kind, ready, n)
    return best


class Hybrid(CompiledSchedule):
    rule = staticmethod(hybrid)
