"""Where experts lie before the first step, from a trace (TriMoE section 4.3, offline part).

The most used experts are in GPU memory. Of the rest, the more used are striped for the CPU and for
loading, the less used localized for near-data computation, each in one DIMM, balanced over them.
Where to cut is decided by the expected makespan of the cut."""

from __future__ import annotations

import numpy as np

from moesaic.policies.compiled import compiled
from moesaic.policies.tri.costs import ON_CPU, ON_GPU, ON_NDP, OPTIONS, Floats, TriCosts
from moesaic.policies.tri.layer import ALL_DEVICES, NO_DIMM, Bools, Ints, Places


@compiled
def expected_times(costs: TriCosts, loads: Ints) -> Floats:
    """[OPTIONS, experts] for loads [samples, experts]: on the GPU from its own memory, on the CPU
    from a striped layout, on one NDP unit; an expert without tokens costs nothing."""
    samples, experts = loads.shape
    mean = np.zeros((OPTIONS, experts))
    for s in range(samples):
        for e in range(experts):
            load = loads[s, e]
            if load > 0:
                mean[ON_GPU, e] += costs.compute[ON_GPU, load]
                mean[ON_CPU, e] += max(costs.compute[ON_CPU, load], costs.striped_ns)
                mean[ON_NDP, e] += max(costs.compute[ON_NDP, load], costs.internal_ns)
    mean /= max(samples, 1)
    return mean


def offline_layout(
    costs: TriCosts,
    loads: Ints,
    slots: int | Bools,
    devices: Bools = ALL_DEVICES,
    localized: bool = False,
) -> Places:
    """`loads[samples, experts]` of one layer in a trace. `slots`: how many experts GPU memory has
    for this layer, or which. `localized`: nothing is striped, as in a system without the idea of
    two layouts."""
    experts = loads.shape[1]
    mean = expected_times(costs, loads)
    activity = (loads > 0).mean(axis=0)
    by_load = np.argsort(-loads.sum(axis=0), kind="stable")
    resident = np.zeros(experts, dtype=np.bool_)
    if isinstance(slots, np.ndarray):
        resident[:] = slots
    else:
        resident[by_load[:slots]] = True
    rest = by_load[~resident[by_load]]
    gpu_ns = float(mean[ON_GPU, resident].sum())
    host = 0 if localized else _cut(costs, mean, activity, rest, gpu_ns, devices)
    dimm = np.full(experts, NO_DIMM, dtype=np.int64)
    # A resident expert's copy in the host lies where a missed one's would: striped.
    if devices[ON_NDP] and costs.units:
        local = rest[host:]
        dimm[local] = spread(mean[ON_NDP, local], costs.units)
        if localized:
            dimm[resident] = np.arange(resident.sum()) % costs.units
    return Places(resident, dimm == NO_DIMM, dimm, np.ones(experts, dtype=np.int64))


def _cut(
    costs: TriCosts, mean: Floats, activity: Floats, rest: Ints, gpu_ns: float, devices: Bools
) -> int:
    """How many of `rest` (falling load) to stripe: the host processors take them, the DIMMs the
    others, and each striped read occupies every DIMM for a while."""
    if not devices[ON_NDP] or not costs.units:
        return len(rest)
    striped_busy = np.concatenate([[0.0], np.cumsum(costs.striped_busy_ns * activity[rest])])
    near = mean[ON_NDP, rest]
    dimm = (near.sum() - np.concatenate([[0.0], np.cumsum(near)])) / costs.units + striped_busy
    miss = np.concatenate([[0.0], np.cumsum(activity[rest] * costs.pcie_ns)])
    if devices[ON_CPU]:  # with the GPU's misses and the CPU in proportion to their speed
        cpu = np.concatenate([[0.0], np.cumsum(mean[ON_CPU, rest])])
        rate = np.divide(cpu, miss, out=np.zeros_like(cpu), where=miss > 0)
        host = (cpu + rate * gpu_ns) / (1.0 + rate)
        host = np.where(host < gpu_ns, np.minimum(cpu, gpu_ns), host)
    else:
        host = gpu_ns + miss
    return int(np.argmin(np.maximum(host, dimm)))


def spread(weights: Floats, dimms: int) -> Ints:
    """The DIMM of each expert: largest first, always to the DIMM with least."""
    total = np.zeros(dimms)
    where = np.zeros(len(weights), dtype=np.int64)
    for i in np.argsort(-weights, kind="stable"):
        where[i] = np.argmin(total)
        total[where[i]] += weights[i]
    return where
