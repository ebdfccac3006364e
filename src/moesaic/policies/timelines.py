"""The three timelines of one layer: GPU, CPU and link. Compiled, over flat arrays.

Arrays run over the n active experts, sorted by load, highest first. `ready[i]` says when expert
i is on the GPU: 0 now, a later time while it is under way, ABSENT when it would have to be
transferred. `gpu[i]` and `cpu[i]` are what it costs there. `lanes` holds the scalars, by the
indices below. A rule (one per schedule) decides `kind[i]`; what follows from it is here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.compiled import compiled

Ints = NDArray[np.int64]

ABSENT = -1
ON_GPU, ON_CPU, MOVED = 0, 1, 2  # MOVED: transferred first, then computed on the GPU

EXPERT, LOAD, READY = 0, 1, 2  # rows of a layer's table of active experts

# Indices into `lanes`.
GPU_FREE, CPU_FREE, LINK_FREE, CPU_FIRST, TRANSFER, CPU_SLOWED = 0, 1, 2, 3, 4, 5
NUM_LANES = 6
ALONE = 1000  # `lanes[CPU_SLOWED]`: thousandths that CPU work takes longer while the link is busy


@compiled
def cpu_finish(start: int, work: int, link_end: int, slowed: int) -> int:
    """When the CPU has done `work` (what it takes alone) if the link is busy until `link_end` and
    slows it down by so many thousandths as long."""
    if slowed == 0 or link_end <= start:
        return start + work
    done = (link_end - start) * ALONE // (ALONE + slowed)  # when the link falls idle
    if done >= work:
        return start + work + work * slowed // ALONE
    return link_end + work - done


@compiled
def sort_by_load(experts: Ints, loads: Ints, n: int) -> None:
    """Highest load first, in place; equal loads keep their order."""
    for i in range(1, n):
        expert, load = experts[i], loads[i]
        j = i
        while j > 0 and loads[j - 1] < load:
            experts[j] = experts[j - 1]
            loads[j] = loads[j - 1]
            j -= 1
        experts[j] = expert
        loads[j] = load


@compiled
def gather(chosen: Ints, resident: NDArray[np.uint8], table: Ints, loads: Ints) -> int:
    """Fill `table` with the active experts of a layer, highest load first; returns how many.

    `chosen` are the experts of every token (a negative one is none), `loads` is scratch of one
    zero per expert and is left zero again."""
    n = 0
    for expert in chosen.flat:
        if expert < 0:
            continue
        if loads[expert] == 0:
            table[EXPERT, n] = expert
            n += 1
        loads[expert] += 1
    for i in range(n):
        expert = table[EXPERT, i]
        table[LOAD, i] = loads[expert]
        loads[expert] = 0
    sort_by_load(table[EXPERT], table[LOAD], n)
    for i in range(n):
        table[READY, i] = 0 if resident[table[EXPERT, i]] else ABSENT
    return n


@compiled
def sort_by_arrival(ready: Ints, n: int, coming: Ints) -> int:
    """Positions of the experts under way into `coming`, the first to arrive first; returns how
    many. Equal arrivals keep their order."""
    late = 0
    for i in range(n):
        if ready[i] > 0:
            j = late
            while j > 0 and ready[coming[j - 1]] > ready[i]:
                coming[j] = coming[j - 1]
                j -= 1
            coming[j] = i
            late += 1
    return late


@compiled
def next_arrival(kind: Ints, ready: Ints, n: int, after: int) -> int:
    """Of the experts under way that the GPU waits for, the one that arrives next after that one
    (the first of all after -1); n where there is none."""
    found = n
    for i in range(n):
        if ready[i] <= 0 or kind[i] != ON_GPU:
            continue
        if after >= 0 and (ready[i] < ready[after] or (ready[i] == ready[after] and i <= after)):
            continue
        if found == n or ready[i] < ready[found]:
            found = i
    return found


@compiled
def finish_arrivals(
    gpu_end: int, kind: Ints, ready: Ints, gpu: Ints, lanes: Ints, n: int, coming: int
) -> int:
    """When the GPU ends if it takes what arrives from `gpu_end` on: so many experts under way, and
    moved ones, in order of arrival. With release dates and one machine no order ends earlier."""
    link_end = lanes[LINK_FREE]
    late = next_arrival(kind, ready, n, -1) if coming > 0 else n
    for i in range(n):
        if kind[i] != MOVED:
            continue
        link_end += lanes[TRANSFER]
        while late < n and ready[late] <= link_end:
            gpu_end = max(gpu_end, ready[late]) + gpu[late]
            coming -= 1
            late = next_arrival(kind, ready, n, late) if coming > 0 else n
        gpu_end = max(gpu_end, link_end) + gpu[i]
    while late < n:
        gpu_end = max(gpu_end, ready[late]) + gpu[late]
        coming -= 1
        late = next_arrival(kind, ready, n, late) if coming > 0 else n
    return gpu_end


@compiled
def finish_time(kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int) -> int:
    """When the last lane ends if every expert is served as `kind` says.

    The GPU takes resident experts first, then what arrives, in order of arrival."""
    gpu_end, cpu_work = lanes[GPU_FREE], lanes[CPU_FIRST]
    cpu_used = False
    coming = 0
    moved = 0
    for i in range(n):
        if kind[i] == ON_CPU:
            cpu_work += cpu[i]
            cpu_used = True
        elif kind[i] == MOVED:
            moved += 1
        elif ready[i] == 0:
            gpu_end += gpu[i]
        else:
            coming += 1
    if coming + moved > 0:
        gpu_end = finish_arrivals(gpu_end, kind, ready, gpu, lanes, n, coming)
    if cpu_used:
        link_end = lanes[LINK_FREE] + moved * lanes[TRANSFER]
        cpu_end = cpu_finish(lanes[CPU_FREE], cpu_work, link_end, lanes[CPU_SLOWED])
        gpu_end = max(gpu_end, cpu_end)
    return int(gpu_end)


@compiled
def gpu_order(
    kind: Ints, ready: Ints, gpu: Ints, lanes: Ints, n: int, order: Ints, arrival: Ints
) -> int:
    """The GPU's queue: whenever it is free, the highest load among what has arrived.

    Writes positions into `order` and returns how many; `arrival` is scratch."""
    link_end = lanes[LINK_FREE]
    waiting = 0
    for i in range(n):
        arrival[i] = ready[i]
        if kind[i] == MOVED:
            link_end += lanes[TRANSFER]
            arrival[i] = link_end
        if kind[i] == ON_CPU:
            arrival[i] = ABSENT
        else:
            waiting += 1
    now = lanes[GPU_FREE]
    for done in range(waiting):
        pick = -1
        for i in range(n):  # the first that has arrived, else the first to arrive
            if arrival[i] == ABSENT:
                continue
            if arrival[i] <= now:
                pick = i
                break
            if pick < 0 or arrival[i] < arrival[pick]:
                pick = i
        now = max(now, arrival[pick]) + gpu[pick]
        arrival[pick] = ABSENT
        order[done] = pick
    return waiting
