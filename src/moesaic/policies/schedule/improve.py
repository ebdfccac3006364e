"""From a good assignment to a better one: every assignment of few experts, exchanges of many.

The finish of a layer is the largest of three: the CPU's end, the GPU's if nothing had to be waited
for, and the end of what arrives later (under way or moved, in order of arrival). The first two
follow from two sums that change by one expert at a time, so nearly every assignment is rejected
without looking at arrivals."""

from __future__ import annotations

import numpy as np

from moesaic.policies.compiled import compiled
from moesaic.policies.schedule.hybrid import hybrid
from moesaic.policies.schedule.splits import EITHER_ORDER, best_split
from moesaic.policies.timelines import (
    ABSENT,
    CPU_FIRST,
    CPU_FREE,
    CPU_SLOWED,
    GPU_FREE,
    LINK_FREE,
    MOVED,
    ON_CPU,
    ON_GPU,
    TRANSFER,
    Ints,
    cpu_finish,
    finish_time,
    sort_by_arrival,
)

EXACT = 10  # experts of which every assignment is tried: 2 to that power
EXCHANGED = 32  # experts of which pairs are exchanged; of more, the split is left as it is
PASSES = 8  # over all pairs of more experts than that; two or three are usual


@compiled
def improve(
    kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, best: int, spare: Ints
) -> int:
    """Improve `kind`, the best split, which ends at `best`; returns the new end. `spare` is
    scratch."""
    alike = True
    late = 0
    for i in range(n):
        alike = alike and gpu[i] == gpu[0] and cpu[i] == cpu[0]
        late += ready[i] > 0
    if alike and late <= 1:
        return best  # only numbers of experts count, and the best split has tried them all
    if n <= EXACT:
        return try_every(kind, ready, gpu, cpu, lanes, n, best, spare)
    if n <= EXCHANGED:
        best = best_split(kind, ready, gpu, cpu, lanes, n, EITHER_ORDER, spare)
    if late > 1:
        best = try_greedy(kind, ready, gpu, cpu, lanes, n, best, spare)
    if n > EXCHANGED:
        return best
    return exchange(kind, ready, gpu, cpu, lanes, n, best, spare)


@compiled
def try_greedy(
    kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, best: int, spare: Ints
) -> int:
    """A split waits for all that is under way or for nothing of it; `hybrid` may wait for some."""
    greedy = np.empty(n, dtype=np.int64)
    hybrid(greedy, ready, gpu, cpu, lanes, n, spare)
    end = finish_time(greedy, ready, gpu, cpu, lanes, n)  # beside copies, unlike hybrid's own
    if end >= best:
        return best
    for i in range(n):
        kind[i] = greedy[i]
    return end


@compiled  # in one piece: a call per choice takes longer than the choice
def try_every(  # noqa: PLR0912
    kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, best: int, coming: Ints
) -> int:
    """All assignments in the order of a Gray code: each differs from the one before by one expert.
    Bit i of `trial` is set where expert i is on the CPU. `coming` is scratch."""
    cpu_end, gpu_end = lanes[CPU_FREE] + lanes[CPU_FIRST], lanes[GPU_FREE]
    link_end = lanes[LINK_FREE]
    for i in range(n):
        gpu_end += gpu[i]
        if ready[i] == ABSENT:
            link_end += lanes[TRANSFER]
    late = sort_by_arrival(ready, n, coming)
    on_cpu = 0
    trial = 0
    for step in range(1 << n):
        if step > 0:
            i = 0
            while not step >> i & 1:
                i += 1
            trial ^= 1 << i
            side = 1 if trial >> i & 1 else -1
            on_cpu += side
            cpu_end += side * cpu[i]
            gpu_end -= side * gpu[i]
            if ready[i] == ABSENT:
                link_end -= side * lanes[TRANSFER]
        if gpu_end >= best or (on_cpu > 0 and cpu_end >= best):
            continue
        if link_end >= best and link_end > lanes[LINK_FREE]:
            continue
        slowed_end = 0 * cpu_end
        if on_cpu > 0:  # the link slows it down
            work = cpu_end - lanes[CPU_FREE]
            slowed_end = cpu_finish(lanes[CPU_FREE], work, link_end, lanes[CPU_SLOWED])
            if slowed_end >= best:
                continue
        arrived = 0 * best  # the GPU's end if it did only what arrives later
        arrival = lanes[LINK_FREE]
        at = 0
        for i in range(n):
            if ready[i] == ABSENT and not trial >> i & 1:
                arrival += lanes[TRANSFER]
                while at < late and ready[coming[at]] <= arrival:
                    if not trial >> coming[at] & 1:
                        arrived = max(arrived, ready[coming[at]]) + gpu[coming[at]]
                    at += 1
                arrived = max(arrived, arrival) + gpu[i]
        for k in range(at, late):
            if not trial >> coming[k] & 1:
                arrived = max(arrived, ready[coming[k]]) + gpu[coming[k]]
        if arrived < best:
            best = max(arrived, gpu_end, slowed_end)
            for i in range(n):
                kind[i] = ON_CPU if trial >> i & 1 else MOVED if ready[i] == ABSENT else ON_GPU
    return best


@compiled  # in one piece: a call per pair takes longer than the pair
def exchange(  # noqa: PLR0912, PLR0915
    kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, best: int, coming: Ints
) -> int:
    """Change sides of one or two experts as long as that ends earlier. `coming` is scratch."""
    late = sort_by_arrival(ready, n, coming)
    cpu_end, gpu_end = lanes[CPU_FREE] + lanes[CPU_FIRST], lanes[GPU_FREE]
    on_cpu = 0
    moved = 0
    shortest = gpu[0]
    for i in range(n):
        shortest = min(shortest, gpu[i])
        if kind[i] == ON_CPU:
            on_cpu += 1
            cpu_end += cpu[i]
        else:
            gpu_end += gpu[i]
            moved += ready[i] == ABSENT
    better = True
    passes = 0
    while better and passes < PASSES:
        better = False
        passes += 1
        for i in range(n):
            for j in range(i, n):  # j == i: that one alone
                side = -1 if kind[i] == ON_CPU else 1
                count = on_cpu + side
                moves = moved - side * (ready[i] == ABSENT)
                new_cpu = cpu_end + side * cpu[i]
                new_gpu = gpu_end - side * gpu[i]
                if j > i:
                    side = -1 if kind[j] == ON_CPU else 1
                    count += side
                    moves -= side * (ready[j] == ABSENT)
                    new_cpu += side * cpu[j]
                    new_gpu -= side * gpu[j]
                if new_gpu >= best or (count > 0 and new_cpu >= best):
                    continue
                if moves > 0 and lanes[LINK_FREE] + moves * lanes[TRANSFER] + shortest >= best:
                    continue
                arrived = 0 * best
                link_end = lanes[LINK_FREE]
                at = 0
                for k in range(n):
                    if ready[k] == ABSENT and (kind[k] == ON_CPU) == (k in (i, j)):
                        link_end += lanes[TRANSFER]
                        while at < late and ready[coming[at]] <= link_end:
                            c = coming[at]
                            if (kind[c] == ON_CPU) == (c in (i, j)):
                                arrived = max(arrived, ready[c]) + gpu[c]
                            at += 1
                        arrived = max(arrived, link_end) + gpu[k]
                for k in range(at, late):
                    c = coming[k]
                    if (kind[c] == ON_CPU) == (c in (i, j)):
                        arrived = max(arrived, ready[c]) + gpu[c]
                slowed_end = 0 * new_cpu
                if count > 0:
                    work = new_cpu - lanes[CPU_FREE]
                    slowed_end = cpu_finish(lanes[CPU_FREE], work, link_end, lanes[CPU_SLOWED])
                if arrived >= best or slowed_end >= best:
                    continue
                best = max(arrived, new_gpu, slowed_end)
                on_cpu, moved, cpu_end, gpu_end = count, moves, new_cpu, new_gpu
                for k in range(i, j + 1, max(j - i, 1)):  # i, and j where it is another
                    back = MOVED if ready[k] == ABSENT else ON_GPU
                    kind[k] = back if kind[k] == ON_CPU else ON_CPU
                better = True
    return best
