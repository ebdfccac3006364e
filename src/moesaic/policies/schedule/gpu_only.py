"""GPU-centric offloading: missing experts are loaded on demand, the highest load first."""

from __future__ import annotations

from moesaic.policies.compiled import compiled
from moesaic.policies.schedule.base import GPU_ONLY, CompiledSchedule
from moesaic.policies.timelines import ABSENT, MOVED, ON_GPU, Ints


@compiled
def gpu_only(kind: Ints, ready: Ints, n: int) -> None:
    for i in range(n):
        kind[i] = MOVED if ready[i] == ABSENT else ON_GPU


class GpuOnly(CompiledSchedule):
    rule = GPU_ONLY
    decides = False
    needs_slots = True
