"""What one expert costs on each device and what its weights occupy on the way (TriMoE eq. 1 to 4).

All times in nanoseconds. A read by the host (CPU, or GPU through PCIe) also keeps DIMMs busy: how
long is not defined by the paper, so it is a rule (`CONTENTION`), the same for every system."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.policies.compiled import compiled

Floats = NDArray[np.float64]

ON_GPU, ON_CPU, ON_NDP = 0, 1, 2  # options of an expert
OPTIONS = 3
PART_ON_NDP = 3  # row of a split expert's part

CONTENTION = {
    "full": "a host read keeps every DIMM it touches busy for its whole duration",
    "own-share": "a host read keeps a DIMM busy while that DIMM's own bytes are read",
    "none": "host reads and near-data computation do not disturb each other",
}
OWN_SHARE = "own-share"


class TriCosts(NamedTuple):
    """`compute[option, tokens]` are the profiled f_calc of GPU, CPU and one NDP unit; a fourth row,
    where there is one, what a unit takes for its part of a split expert, all included. The other
    times are of one expert's weights: over PCIe, from DRAM to the CPU out of a striped or a
    localized layout, and inside a DIMM; `channel_ns` is how long a striped read keeps every channel
    busy, which is less than the CPU takes for it where the CPU is slower than all channels
    together. `*_busy_ns` is how long such a read occupies each DIMM it
    touches. With `shared`, all host reads go through the same channels, copies to the GPU first,
    and the CPU's reads wait meanwhile; without it, CPU and GPU each have the host's whole
    bandwidth, as in the paper. With `pipelined`, weights arrive over
    PCIe while the GPU computes other experts; without it, equation 2 holds expert by expert.
    Without that row a split expert costs every unit its part of the time, and `gather_ns` per token
    for inputs and partial results. The
    first `units` DIMMs have a unit that computes."""

    compute: Floats  # [3 or 4, tokens + 1]
    pcie_ns: float
    striped_ns: float
    channel_ns: float
    localized_ns: float
    internal_ns: float
    striped_busy_ns: float
    localized_busy_ns: float
    dimms: int
    channels: int
    shared: bool
    pipelined: bool
    gather_ns: float
    units: int

    @property
    def tokens(self) -> int:
        """The largest load with a cost."""
        return int(self.compute.shape[1]) - 1


def tri_costs(
    compute: Floats,
    *,
    pcie_ns: float,
    striped_ns: float,
    localized_ns: float,
    internal_ns: float,
    dimms: int,
    channels: int,
    contention: str = OWN_SHARE,
    shared: bool = True,
    pipelined: bool = False,
    gather_ns: float = 0.0,
    units: int | None = None,
    channel_ns: float | None = None,
) -> TriCosts:
    """Costs under a contention rule. A DIMM's own share of a striped read is its part of the bytes
    at its channel's bandwidth: with two DIMMs per channel, half of the channel's time. Without
    `channel_ns` the CPU is as fast as the channels."""
    if contention not in CONTENTION:
        raise UnknownName("contention rule", contention, CONTENTION)
    if dimms < 1 or channels < 1 or dimms % channels:
        raise ImpossibleSetting(
            f"{dimms} DIMMs on {channels} channels: every channel needs the same number, at least 1"
        )
    if units is not None and not 0 <= units <= dimms:
        raise ImpossibleSetting(f"{units} of {dimms} DIMMs compute: expected 0 to {dimms}")
    if min(pcie_ns, striped_ns, localized_ns, internal_ns) <= 0:
        raise ImpossibleSetting("transfer and read times of an expert must be positive")
    share = {"full": 1.0, OWN_SHARE: channels / dimms, "none": 0.0}[contention]
    own = 0.0 if contention == "none" else localized_ns
    channel = striped_ns if channel_ns is None else channel_ns
    table = np.ascontiguousarray(compute, dtype=np.float64)
    return TriCosts(
        table, float(pcie_ns), float(striped_ns), float(channel), float(localized_ns),
        float(internal_ns), share * channel, own, dimms, channels, shared, pipelined,
        float(gather_ns), dimms if units is None else units,
    )  # fmt: skip


@compiled
def gpu_hit_ns(costs: TriCosts, load: int) -> float:
    """Equation 1: the expert is in GPU memory."""
    return float(costs.compute[ON_GPU, load])


@compiled
def dram_ns(costs: TriCosts, striped: bool, span: int) -> float:
    """T_DRAM: all channels for a striped expert; for one in `span` DIMMs, the busiest channel."""
    if striped:
        return float(costs.channel_ns)
    rounds = (span + costs.channels - 1) // costs.channels
    return float(costs.localized_ns * rounds / span)


@compiled
def gpu_miss_ns(costs: TriCosts, load: int, striped: bool, span: int) -> float:
    """Equation 2: loaded on demand."""
    weights = max(costs.pcie_ns, dram_ns(costs, striped, span))
    return float(max(costs.compute[ON_GPU, load], weights))


@compiled
def cpu_ns(costs: TriCosts, load: int, striped: bool, span: int) -> float:
    """Equation 3; the CPU may read stripes more slowly than the channels carry them."""
    reading = costs.striped_ns if striped else dram_ns(costs, striped, span)
    return float(max(costs.compute[ON_CPU, load], reading))


@compiled
def ndp_ns(costs: TriCosts, load: int, span: int) -> float:
    """Equation 4; a split expert's units each read and compute their part of it."""
    if span > 1 and len(costs.compute) > PART_ON_NDP:
        return float(costs.compute[PART_ON_NDP, load])
    part = max(costs.compute[ON_NDP, load], costs.internal_ns) / span
    return float(part + (costs.gather_ns * load if span > 1 else 0.0))
