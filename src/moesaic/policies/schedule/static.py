"""Rules under which nothing moves: experts are computed where the placement has put them.

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
def stay_in_place(
    kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, spare: Ints
) -> int:
    static_experts(kind, ready, n)
    return finish_time(kind, ready, gpu, cpu, lanes, n)


class StaticExperts(CompiledSchedule):
    """kTransformers' rule: cached experts on the GPU, the rest on the CPU."""

    rule = staticmethod(stay_in_place)
    decides = False


class StaticLayers(CompiledSchedule):
    """llama.cpp's rule, whole layers on one device: as many first layers as fit have all their
    experts on the GPU, the others none; attention and shared experts stay with their layer."""

    rule = staticmethod(stay_in_place)
    decides = False
    fill = "layers"
    dense_follows = True


class NCpuMoe(CompiledSchedule):
    """llama.cpp with `--n-cpu-moe N`: attention of every layer on the GPU. As many last layers as
    fit have all their experts on the GPU, the first N have theirs on the CPU."""

    rule = staticmethod(stay_in_place)
    decides = False
    fill = "last-layers"
