"""What a layer found where, counted when its plan starts."""

from __future__ import annotations

from collections.abc import Container

from moesaic.core.layer_plan import LayerPlan
from moesaic.core.report import LayerReport
from moesaic.core.residency import Residency


def count_layer(
    plan: LayerPlan, residency: Residency, coming: Container[int], block_bytes: int, now_ns: int
) -> LayerReport:
    """The report of a layer that begins now; `coming` are its experts under way."""
    resident = residency.resident[plan.layer].tolist()
    served = [expert for queue in plan.queues.values() for expert in queue]
    hits = sum(resident[expert] for expert in served)
    under_way = sum(expert in coming for expert in served)
    moved = len(plan.transfers) * block_bytes
    return LayerReport(plan.layer, now_ns, now_ns, len(served), hits, moved, under_way)
