"""kTransformers' rule: cached experts on the GPU, the rest on the CPU, nothing moves.

An expert that is still under way is not cached yet."""

from __future__ import annotations

from moesaic.policies.compiled import compiled
from moesaic.policies.schedule.base import STATIC, CompiledSchedule
from moesaic.policies.timelines import ON_CPU, ON_GPU, Ints


@compiled
def static_experts(kind: Ints, ready: Ints, n: int) -> None:
    for i in range(n):
        kind[i] = ON_GPU if ready[i] == 0 else ON_CPU


class StaticExperts(CompiledSchedule):
    rule = STATIC
    decides = False
