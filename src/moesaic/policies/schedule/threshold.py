"""Fiddler's rule: per missing expert, the cheaper of computing it on the CPU and moving it.

Each expert is judged alone, as if no other waited for the CPU or the link."""

from __future__ import annotations

from moesaic.policies.compiled import compiled
from moesaic.policies.schedule.base import CompiledSchedule
from moesaic.policies.timelines import (
    ABSENT,
    MOVED,
    ON_CPU,
    ON_GPU,
    TRANSFER,
    Ints,
    finish_time,
)


@compiled
def threshold(
    kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, spare: Ints
) -> int:
    for i in range(n):
        wait = lanes[TRANSFER] if ready[i] == ABSENT else ready[i]
        if wait > 0 and cpu[i] <= wait + gpu[i]:
            kind[i] = ON_CPU
        else:
            kind[i] = MOVED if ready[i] == ABSENT else ON_GPU
    return finish_time(kind, ready, gpu, cpu, lanes, n)


class Threshold(CompiledSchedule):
    rule = staticmethod(threshold)
