"""kTransformers' rule: cached experts on the GPU, the rest on the CPU, nothing moves."""

from __future__ import annotations

from moesaic.policies.compiled import compiled
from moesaic.policies.schedule.base import STATIC, CompiledSchedule
from moesaic.policies.timelines import ABSENT, ON_CPU, ON_GPU, Ints


@compiled
def static_experts(kind: Ints, ready: Ints, n: int) -> None:
    for i in range(n):
        kind[i] = ON_CPU if ready[i] == ABSENT else ON_GPU


class StaticExperts(CompiledSchedule):
    rule = STATIC
