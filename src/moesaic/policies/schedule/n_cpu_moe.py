"""llama.cpp with `--n-cpu-moe N`: attention of every layer on the GPU, the experts of the first N
layers on the CPU.

The placement does the work: as many last layers as fit have all their experts on the GPU, the
others have none."""

from __future__ import annotations

from moesaic.policies.schedule.base import CompiledSchedule
from moesaic.policies.schedule.static_experts import as_they_lie


class NCpuMoe(CompiledSchedule):
    rule = staticmethod(as_they_lie)
    decides = False
    fill = "last-layers"
