"""Schedules: the device of every active expert of a layer, and what is transferred for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moesaic.core.parameter import Parameter
from moesaic.core.registry import Registry

if TYPE_CHECKING:  # names, summaries and parameters must cost no numpy: `--help` reads them
    from moesaic.policies.schedule.base import Schedule

_HERE = "moesaic.policies.schedule"
schedules: Registry[Schedule] = Registry("schedule", contract=f"{_HERE}.base:Schedule")

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
    f"{_HERE}.static:StaticExperts",
    "kTransformers: cached experts on the GPU, the rest on the CPU",
)
schedules.register(
    "static-layers",
    f"{_HERE}.static:StaticLayers",
    "llama.cpp: whole layers, attention included, on one device",
)
schedules.register(
    "n-cpu-moe",
    f"{_HERE}.static:NCpuMoe",
    "llama.cpp --n-cpu-moe: all attention on the GPU, the first layers' experts on the CPU",
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
    "the optimum of each layer alone, by exhaustive search or MILP: a yardstick, not for speed",
)


def _tri(pipelined: bool) -> tuple[Parameter, ...]:
    """What every schedule over three devices is to believe of the machine."""
    return (
        Parameter(
            "contention",
            str,
            "own-share",
            "how long a host read is believed to occupy the DIMMs it touches",
            choices=("full", "own-share", "none"),
        ),
        Parameter("shared", bool, True, "CPU and GPU are believed to share the host's bandwidth"),
        Parameter(
            "pipelined", bool, pipelined, "loads are believed to overlap with computing on the GPU"
        ),
    )


schedules.register(
    "trimoe",
    f"{_HERE}.tri:TriMoe",
    "TriMoE: GPU, CPU and near-data units by own cost, then refined at the bottleneck",
    (
        Parameter("refine", int, 256, "most reassignments after the first choice", minimum=0),
        Parameter(
            "candidates",
            int,
            0,
            "most experts of the bottleneck to try per reassignment, the most expensive first; "
            "0: all",
            minimum=0,
        ),
        Parameter(
            "least_first",
            bool,
            False,
            "of equally expensive experts, those with the fewest tokens are tried first",
        ),
        *_tri(False),
    ),
)
schedules.register(
    "tri-balanced",
    f"{_HERE}.tri:TriBalanced",
    "GPU, CPU and near-data units by prices and local search: close to the exact makespan",
    (
        Parameter("rounds", int, 40, "times that prices are adjusted to use", minimum=1),
        Parameter("kicks", int, 10, "restarts of the local search", minimum=0),
        *_tri(True),
    ),
)
schedules.register(
    "tri-optimal",
    f"{_HERE}.tri:TriOptimal",
    "the exact makespan over GPU, CPU and near-data units by MILP: a bound, not for speed",
    (
        Parameter("seconds", float, 20.0, "the solver's time limit for one layer", above=0),
        *_tri(True),
    ),
)
schedules.register(
    "klotski",
    f"{_HERE}.tri:Klotski",
    "Klotski: every expert on the GPU, cold ones loaded while hot ones are computed",
    _tri(True),
)
schedules.register(
    "enhanced-ktransformers",
    f"{_HERE}.tri:EnhancedKtransformers",
    "missing experts on the CPU, the most loaded of them loaded on demand as far as it pays",
    _tri(True),
)
schedules.register(
    "monde",
    f"{_HERE}.tri:Monde",
    "MoNDE: weights of loaded experts to the GPU, activations of the others to the DIMMs",
    _tri(True),
)
