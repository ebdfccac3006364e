"""kTransformers' rule: cached experts on the GPU, the rest on the CPU, nothing moves.

An expert that is still under way is not cached yet."""

from __future__ import annotations

from moesaic.policies.compiled import compiled
from moesaic.policies.schedule.base import CompiledSchedule
from moesaic.policies.timelines import ON_CPU, ON_GPU, Ints, finish_time


@compiled
def static_experts(kind: Ints, ready: Ints, n: int) -> None:
    for i in range(n):
        kind[i] = ON_GPU if ready[i] == 0 else ON_CPU


@compiled
def as_they_lie(
    kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, spare: Ints
) -> int:
    static_experts(kind, ready, n)
    return finish_time(kind, ready, gpu, cpu, lanes, n)


class StaticExperts(CompiledSchedule):
    rule = staticmethod(as_they_lie)
    decides = False
