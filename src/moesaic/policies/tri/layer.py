"""One layer's problem: active experts, where each lies, and what serving it occupies.

`use[i, option, resource]` is how long resource r is busy when expert i is served by an option. The
makespan of a choice is the busiest resource (eq. 5 to 7): GPU, CPU and PCIe link, every DIMM, and
every memory channel where the host's bandwidth is shared."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.compiled import compiled
from moesaic.policies.tri.costs import (
    ON_CPU,
    ON_GPU,
    ON_NDP,
    OPTIONS,
    Floats,
    TriCosts,
    cpu_ns,
    dram_ns,
    gpu_hit_ns,
    gpu_miss_ns,
    ndp_ns,
)

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

GPU_TIME, CPU_TIME, PCIE_TIME, FIRST_DIMM = 0, 1, 2, 3  # resources; channels follow the DIMMs
NO_DIMM = -1
ALL_DEVICES = np.ones(OPTIONS, dtype=np.bool_)


class Layer(NamedTuple):
    """Active experts in any order. An expert may be in GPU memory, striped over all DIMMs, and
    localized in `span` DIMMs from `dimm` on (NO_DIMM: not localized), in several of these at once.
    `base` is how long each resource is busy already."""

    loads: Ints
    resident: Bools
    striped: Bools
    dimm: Ints
    span: Ints
    base: Floats


class Places(NamedTuple):
    """The place of every expert of a layer, [experts] each; as in `Layer`."""

    resident: Bools
    striped: Bools
    dimm: Ints
    span: Ints

    def active(
        self, costs: TriCosts, loads: Ints, base: Floats | None = None
    ) -> tuple[Ints, Layer]:
        """The numbers of the experts in use, and their problem."""
        used = np.flatnonzero(loads)
        busy = np.zeros(num_resources(costs)) if base is None else base
        return used, Layer(
            loads[used].astype(np.int64), self.resident[used], self.striped[used],
            self.dimm[used], self.span[used], busy,
        )  # fmt: skip

    def copy(self) -> Places:
        return Places(self.resident.copy(), self.striped.copy(), self.dimm.copy(), self.span.copy())


class Options(NamedTuple):
    use: Floats  # [n, OPTIONS, resources]
    time: Floats  # [n, OPTIONS] on the serving device itself; infinite: not possible
    base: Floats


def num_resources(costs: TriCosts) -> int:
    return FIRST_DIMM + costs.dimms + costs.channels


def layer_of(
    costs: TriCosts,
    loads: NDArray[np.integer],
    *,
    resident: NDArray[np.bool_] | None = None,
    dimm: NDArray[np.integer] | None = None,
    striped: NDArray[np.bool_] | None = None,
    span: NDArray[np.integer] | None = None,
    base: Floats | None = None,
) -> Layer:
    """Make a layer. Without `dimm` everything is striped, and so is an expert that is not
    localized."""
    n = len(loads)
    where = np.full(n, NO_DIMM) if dimm is None else np.asarray(dimm)
    both = np.zeros(n, dtype=np.bool_) if striped is None else striped
    return Layer(
        np.asarray(loads, dtype=np.int64),
        np.zeros(n, dtype=np.bool_) if resident is None else np.asarray(resident, dtype=np.bool_),
        both | (where == NO_DIMM),
        where.astype(np.int64),
        np.ones(n, dtype=np.int64) if span is None else np.asarray(span, dtype=np.int64),
        np.zeros(num_resources(costs)) if base is None else base,
    )


@compiled
def add_read(costs: TriCosts, row: Floats, striped: bool, dimm: int, span: int) -> None:
    """What the host's read of an expert occupies: DIMMs and channels."""
    first_channel = FIRST_DIMM + costs.dimms
    if striped:
        row[FIRST_DIMM:first_channel] += costs.striped_busy_ns
        if costs.shared:
            row[first_channel:] += costs.channel_ns
        return
    for part in range(span):
        at = (dimm + part) % costs.dimms
        row[FIRST_DIMM + at] += costs.localized_busy_ns / span
        if costs.shared:
            row[first_channel + at % costs.channels] += costs.localized_ns / span


@compiled
def fill_expert(
    costs: TriCosts, layer: Layer, i: int, devices: Bools, use: Floats, time: Floats
) -> None:
    """One expert's rows, `use[OPTIONS, resources]` and `time[OPTIONS]`."""
    use[:] = 0.0
    time[:] = np.inf
    load, striped = layer.loads[i], layer.striped[i]
    dimm, span = layer.dimm[i], layer.span[i]
    in_host = striped or dimm >= 0
    if devices[ON_GPU] and layer.resident[i]:
        time[ON_GPU] = gpu_hit_ns(costs, load)
        use[ON_GPU, GPU_TIME] = time[ON_GPU]
    elif devices[ON_GPU] and in_host:
        time[ON_GPU] = gpu_miss_ns(costs, load, striped, span)
        computing = gpu_hit_ns(costs, load) if costs.pipelined else time[ON_GPU]
        use[ON_GPU, GPU_TIME] = computing
        reading = dram_ns(costs, striped, span)
        use[ON_GPU, PCIE_TIME] = max(costs.pcie_ns, reading)
        if costs.shared:  # stripes come as fast as the slowest channel: the CPU waits meanwhile
            use[ON_GPU, CPU_TIME] = reading
        add_read(costs, use[ON_GPU], striped, dimm, span)
    if devices[ON_CPU] and in_host:
        time[ON_CPU] = cpu_ns(costs, load, striped, span)
        use[ON_CPU, CPU_TIME] = time[ON_CPU]
        add_read(costs, use[ON_CPU], striped, dimm, span)
    if devices[ON_NDP] and dimm >= 0 and dimm + span <= costs.units:
        time[ON_NDP] = ndp_ns(costs, load, span)
        for part in range(span):
            use[ON_NDP, FIRST_DIMM + (dimm + part) % costs.dimms] = time[ON_NDP]


@compiled
def fill_options(costs: TriCosts, layer: Layer, devices: Bools, use: Floats, time: Floats) -> None:
    """`devices[option]`: whether this system uses it at all."""
    for i in range(len(layer.loads)):
        fill_expert(costs, layer, i, devices, use[i], time[i])


def options_of(costs: TriCosts, layer: Layer, devices: Bools = ALL_DEVICES) -> Options:
    n, resources = len(layer.loads), num_resources(costs)
    use, time = np.empty((n, OPTIONS, resources)), np.empty((n, OPTIONS))
    assert n == 0 or layer.loads.max() <= costs.tokens, "no cost for such a load"
    fill_options(costs, layer, devices, use, time)
    return Options(use, time, layer.base)


@compiled
def busy_times(options: Options, choice: Ints) -> Floats:
    """Equations 5 and 6: how long every resource is busy."""
    busy = options.base.copy()
    for i in range(len(choice)):
        busy += options.use[i, choice[i]]
    return busy


@compiled
def makespan(options: Options, choice: Ints) -> float:
    """Equation 7."""
    return float(busy_times(options, choice).max())


@compiled
def peak_after(busy: Floats, out: Floats, into: Floats) -> float:
    """The makespan when what occupies `out` occupies `into` instead."""
    peak = 0.0
    for r in range(len(busy)):
        peak = max(peak, busy[r] - out[r] + into[r])
    return float(peak)
