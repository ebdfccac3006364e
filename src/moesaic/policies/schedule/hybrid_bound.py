"""How early `hybrid` can end at best with one more expert on the GPU: the look-ahead need not value
an expert in full that cannot win.

The CPU takes the missing experts from one end and the link from the other, whichever is free first,
and the GPU has no say in that until none is left. So how many are moved follows from sums alone:
the k-th, if the link is free before the CPU would begin with it."""

from __future__ import annotations

from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import ABSENT, CPU_FIRST, CPU_FREE, LINK_FREE, TRANSFER, Ints


@compiled
def cpu_rests(ready: Ints, cpu: Ints, n: int, rests: Ints) -> int:
    """`rests[k]` is what the missing experts cost the CPU if the first k of them are moved; returns
    how many are missing."""
    missing = 0
    for i in range(n):
        if ready[i] == ABSENT:
            rests[missing] = cpu[i]
            missing += 1
    for k in range(missing - 2, -1, -1):
        rests[k] += rests[k + 1]
    return missing


@compiled
def earliest_end(
    rests: Ints, missing: int, rank: int, cost: int, least_gpu: int, lanes: Ints
) -> int:
    """`hybrid` does not end earlier than this when the missing expert of this rank, which costs the
    CPU so much, is on its way; no expert costs the GPU less than `least_gpu`."""
    others = missing - 1
    if others == 0:
        return 0
    start, transfer = lanes[CPU_FREE] + lanes[CPU_FIRST], lanes[TRANSFER]
    static = start + rests[0] - cost
    cpu_end, link_end = static, lanes[LINK_FREE]
    moves = 0
    while moves < others:
        k = moves + 1
        cpu_next = lanes[CPU_FREE]
        if k < others:
            cpu_next = start + (rests[k] - cost if k <= rank else rests[k + 1])
        if link_end >= cpu_next:
            break
        moves = k
        link_end += transfer
        cpu_end = cpu_next if k < others else 0 * cpu_next
    filled = max(cpu_end, link_end + least_gpu) if moves > 0 else cpu_end
    alone = lanes[LINK_FREE] + others * transfer + least_gpu
    return int(min(filled, static, alone))
