"""llama.cpp's rule: whole layers on one device.

The placement does the work: as many first layers as fit have all their experts on the GPU, the
others have none; attention and shared experts stay with their layer."""

from __future__ import annotations

from moesaic.policies.schedule.base import STATIC, CompiledSchedule


class StaticLayers(CompiledSchedule):
    rule = STATIC
    decides = False
    fill = "layers"
    dense_follows = True
