"""The best split under HybriMoE's ordering rules, exactly.

The three priority rules leave two numbers open: how many missing experts (the highest loads)
move to the GPU, and how many cached ones (the lowest loads) the CPU takes over. HybriMoE finds
one such pair by filling timelines greedily. Here every number of moves is tried with every
number of takeovers that could still help; greedy's pair is among them. Experts under way are
waited for together or computed on the CPU together, whichever ends earlier."""

from __future__ import annotations

from moesaic.policies.compiled import compiled
from moesaic.policies.schedule.base import BEST_SPLIT, CompiledSchedule
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


@compiled
def split_finish(
    ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, moves: int, wait: bool
) -> tuple[int, int]:
    """The earliest finish with so many moves, and the number of takeovers that gives it."""
    gpu_end, cpu_end, link_end = lanes[GPU_FREE], lanes[CPU_FREE], lanes[LINK_FREE]
    late_end = 0 * link_end  # the GPU's end if it did only what arrives later
    first = lanes[CPU_FIRST]
    cpu_used = False
    if wait:  # what is under way arrives before anything that has still to be moved
        for i in range(n):
            if ready[i] > 0:
                late_end = max(late_end, ready[i]) + gpu[i]
    for i in range(n):
        if ready[i] == ABSENT and moves > 0:
            moves -= 1
            link_end += lanes[TRANSFER]
            late_end = max(late_end, link_end) + gpu[i]
            gpu_end += gpu[i]
        elif ready[i] == 0 or (ready[i] > 0 and wait):
            gpu_end += gpu[i]
        else:
            cpu_end += cpu[i] if cpu_used else cpu[i] + first
            cpu_used = True
    best = max(gpu_end, late_end, cpu_end) if cpu_used else max(gpu_end, late_end)
    takeovers = 0
    taken = 0
    for i in range(n - 1, -1, -1):  # the CPU takes cached experts, low loads first
        if ready[i] != 0:
            continue
        cpu_end += cpu[i] if cpu_used else cpu[i] + first
        cpu_used = True
        if cpu_end >= best or late_end >= best:
            break  # more takeovers cannot end earlier
        gpu_end -= gpu[i]
        taken += 1
        finish = max(gpu_end, late_end, cpu_end)
        if finish < best:
            best, takeovers = finish, taken
    return best, takeovers


@compiled
def apply_split(kind: Ints, ready: Ints, n: int, moves: int, takeovers: int, wait: bool) -> None:
    for i in range(n):
        if ready[i] == ABSENT:
            kind[i] = MOVED if moves > 0 else ON_CPU
            moves -= 1
        else:
            kind[i] = ON_GPU if ready[i] == 0 or wait else ON_CPU
    for i in range(n - 1, -1, -1):
        if takeovers > 0 and ready[i] == 0:
            kind[i] = ON_CPU
            takeovers -= 1


@compiled
def best_split(kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int) -> int:
    missing = 0
    late = 0
    for i in range(n):
        missing += ready[i] == ABSENT
        late += ready[i] > 0
    best, takeovers = split_finish(ready, gpu, cpu, lanes, n, 0, True)
    moves, wait = 0, True
    for option in range(2 if late > 0 else 1):
        for tried in range(1 - option, missing + 1):
            if lanes[LINK_FREE] + tried * lanes[TRANSFER] >= best and tried > 0:
                break  # the link alone would take longer
            finish, taken = split_finish(ready, gpu, cpu, lanes, n, tried, option == 0)
            if finish < best:
                best, moves, takeovers, wait = finish, tried, taken, option == 0
    apply_split(kind, ready, n, moves, takeovers, wait)
    return best


class BestSplit(CompiledSchedule):
    rule = BEST_SPLIT
