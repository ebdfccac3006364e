"""llama.cpp's rule: whole layers on one device.

The placement does the work: as many first layers as fit have all their experts on the GPU, the
others have none; attention and shared experts stay with their layer."""

from __future__ import annotations

from moesaic.policies.schedule.base import CompiledSchedule
from moesaic.policies.schedule.static_experts import as_they_lie


class StaticLayers(CompiledSchedule):
    rule = staticmethod(as_they_lie)
    decides = False
    fill = "layers"
    dense_follows = True
