"""GPU-centric offloading: missing experts are loaded on demand, the highest load first."""

from __future__ import annotations

from moesaic.policies.compiled import compiled
from moesaic.policies.schedule.base import CompiledSchedule
from moesaic.policies.timelines import ABSENT, MOVED, ON_GPU, Ints, finish_time


@compiled
def gpu_only(kind: Ints, ready: Ints, n: int) -> None:
    for i in range(n):
        kind[i] = MOVED if ready[i] == ABSENT else ON_GPU


@compiled
def all_on_gpu(
    kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, spare: Ints
) -> int:
    gpu_only(kind, ready, n)
    return finish_time(kind, ready, gpu, cpu, lanes, n)


class GpuOnly(CompiledSchedule):
    rule = staticmethod(all_on_gpu)
    decides = False
    needs_slots = True
