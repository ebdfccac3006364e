"""Schedules: the device of every active expert of a layer, and what is transferred for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moesaic.core.registry import Registry

if TYPE_CHECKING:  # names, summaries and parameters must cost no numpy: `--help` reads them
    from moesaic.policies.schedule.base import Schedule

schedules: Registry[Schedule] = Registry("schedule")
_HERE = "moesaic.policies.schedule"

schedules.register(
    "hybrid",
    f"{_HERE}.hybrid:Hybrid",
    "HybriMoE: fill the GPU, CPU and PCIe timelines step by step under three priority rules",
)
schedules.register(
    "best-split",
    f"{_HERE}.best_split:BestSplit",
    "the best split that hybrid's ordering rules allow",
)
schedules.register(
    "static-experts",
    f"{_HERE}.static_experts:StaticExperts",
    "kTransformers: cached experts on the GPU, the rest on the CPU",
)
schedules.register(
    "static-layers",
    f"{_HERE}.static_layers:StaticLayers",
    "llama.cpp: whole layers, attention included, on one device",
)
schedules.register(
    "gpu-only",
    f"{_HERE}.gpu_only:GpuOnly",
    "every expert on the GPU, missing ones loaded on demand (AdapMoE with prefetch and cache)",
)
schedules.register(
    "threshold",
    f"{_HERE}.threshold:Threshold",
    "Fiddler: a missing expert runs on the CPU when that is cheaper than its transfer",
)
schedules.register(
    "optimal",
    f"{_HERE}.optimal:Optimal",
    "exact makespan by exhaustive search or MILP: a bound, not for speed",
)
