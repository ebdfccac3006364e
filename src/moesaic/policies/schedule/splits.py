"""Splits between CPU, GPU and link that HybriMoE's ordering rules allow, and the best of them; see
best_split.py."""

from __future__ import annotations

from moesaic.policies.compiled import compiled
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
    sort_by_arrival,
)

IN_ORDER, EITHER_ORDER = 1, 4  # of the orders below, how many are tried


@compiled
def split_finish(
    ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, stay: int, moves: int, wait: bool,
    rising: bool, coming: Ints, late: int,
) -> tuple[int, int]:  # fmt: skip
    """The earliest finish if of the missing experts the first `stay` are computed on the CPU and
    the next so many moved, and the number of takeovers that gives it: of the cached experts with
    the lowest loads, or (`rising` false) the highest. The first `late` of `coming` are under way,
    in order of arrival; the GPU takes them if it waits, and what is moved, as they arrive."""
    gpu_end, link_end, cpu_work = lanes[GPU_FREE], lanes[LINK_FREE], lanes[CPU_FIRST]
    late_end = 0 * link_end  # the GPU's end if it did only what arrives later
    cpu_free, slowed = lanes[CPU_FREE], lanes[CPU_SLOWED]
    cpu_used = False
    arrived = 0 if wait else late  # of `coming`
    for i in range(n):
        moved = False
        if ready[i] == ABSENT:
            moved = stay <= 0 and moves > 0
            moves -= moved
            stay -= 1
        if moved:
            link_end += lanes[TRANSFER]
            while arrived < late and ready[coming[arrived]] <= link_end:
                late_end = max(late_end, ready[coming[arrived]]) + gpu[coming[arrived]]
                arrived += 1
            late_end = max(late_end, link_end) + gpu[i]
            gpu_end += gpu[i]
        elif ready[i] == 0 or (ready[i] > 0 and wait):
            gpu_end += gpu[i]
        else:
            cpu_work += cpu[i]
            cpu_used = True
    for at in range(arrived, late):
        late_end = max(late_end, ready[coming[at]]) + gpu[coming[at]]
    cpu_end = cpu_finish(cpu_free, cpu_work, link_end, slowed) if cpu_used else 0 * cpu_work
    best = max(gpu_end, late_end, cpu_end)
    takeovers = 0
    taken = 0
    for at in range(n):
        i = n - 1 - at if rising else at
        if ready[i] != 0:
            continue
        cpu_work += cpu[i]
        cpu_end = cpu_finish(cpu_free, cpu_work, link_end, slowed)
        if cpu_end >= best or late_end >= best:
            break  # more takeovers cannot end earlier
        gpu_end -= gpu[i]
        taken += 1
        finish = max(gpu_end, late_end, cpu_end)
        if finish < best:
            best, takeovers = finish, taken
    return best, takeovers


@compiled
def apply_split(
    kind: Ints, ready: Ints, n: int, stay: int, moves: int, takeovers: int, wait: bool, rising: bool
) -> None:
    for i in range(n):
        if ready[i] == ABSENT:
            moved = stay <= 0 and moves > 0
            kind[i] = MOVED if moved else ON_CPU
            moves -= moved
            stay -= 1
        else:
            kind[i] = ON_GPU if ready[i] == 0 or wait else ON_CPU
    for at in range(n):
        i = n - 1 - at if rising else at
        if takeovers > 0 and ready[i] == 0:
            kind[i] = ON_CPU
            takeovers -= 1


@compiled
def best_split(
    kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, orders: int, coming: Ints
) -> int:
    """`orders`: IN_ORDER moves the highest loads and takes over the lowest; EITHER_ORDER also tries
    the opposite of one or both. `coming` is scratch."""
    missing = 0
    for i in range(n):
        missing += ready[i] == ABSENT
    late = sort_by_arrival(ready, n, coming)
    best, takeovers = split_finish(ready, gpu, cpu, lanes, n, 0, 0, True, True, coming, late)
    stay, moves, wait, rising = 0, 0, True, True
    for order in range(orders):
        lowest, upwards = order >= 2, order % 2 == 0
        for option in range(2 if late > 0 else 1):
            for tried in range(missing + 1):
                if lanes[LINK_FREE] + tried * lanes[TRANSFER] >= best and tried > 0:
                    break  # the link alone would take longer
                behind = missing - tried if lowest else 0
                finish, taken = split_finish(
                    ready, gpu, cpu, lanes, n, behind, tried, option == 0, upwards, coming, late
                )
                if finish < best:
                    best, stay, moves, takeovers = finish, behind, tried, taken
                    wait, rising = option == 0, upwards
    apply_split(kind, ready, n, stay, moves, takeovers, wait, rising)
    return best
