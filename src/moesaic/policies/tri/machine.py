"""A machine's topology and a belief about it, as the makespan model sees them.

Main memory is the placement at index 1 of every machine: stripes over DIMMs, or one piece. DIMMs
are the memories it is striped over; one that a device owns has a unit that computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moesaic.core.offloading import CPU, GPU, IN_DRAM, IN_VRAM, PCIE
from moesaic.core.topology import SPLIT, STRIPED, WHOLE, Topology
from moesaic.core.view import View
from moesaic.policies.belief import Belief
from moesaic.policies.costs import Costs
from moesaic.policies.tri.costs import OWN_SHARE, Floats, TriCosts, tri_costs
from moesaic.policies.tri.layer import NO_DIMM, Places

_CLEARLY = 1.1
_PROBE = 1  # tokens with which an expert's cost is its weights'


@dataclass(frozen=True, slots=True)
class DimmIndices:
    """The indices of the parts in the topology's lists; empty without DIMMs."""

    placements: tuple[int, ...]  # whole in each DIMM
    memories: tuple[int, ...]
    units: tuple[str, ...]  # devices of the first DIMMs
    channels: int = 0  # they are on; 0: not stated
    splits: tuple[int, ...] = ()  # placements over groups of neighbours, in the DIMMs' order

    @property
    def span(self) -> int:
        """How many DIMMs a split expert lies in."""
        return self.count // len(self.splits) if self.splits else 1

    @classmethod
    def of(cls, topology: Topology) -> DimmIndices:
        main = topology.placements[IN_DRAM]
        if main.layout != STRIPED:
            return cls((), (), ())
        names = [name for name in main.memories if f"{WHOLE}@{name}" in topology.placement_index]
        owners = [topology.memories[topology.memory_index[name]].owner for name in names]
        on = {topology.memories[topology.memory_index[name]].channel for name in names}
        units: list[str] = []
        for owner in owners:
            if not owner or owner not in topology.device_index:
                break
            units.append(owner)
        return cls(
            tuple(topology.placement_index[f"{WHOLE}@{name}"] for name in names),
            tuple(topology.memory_index[name] for name in names),
            tuple(units),
            0 if None in on else len(on),
            _groups(topology, names),
        )

    @property
    def count(self) -> int:
        return len(self.placements)


def _groups(topology: Topology, names: list[str]) -> tuple[int, ...]:
    """The placements that split experts over neighbouring DIMMs, where they cover all DIMMs
    evenly."""
    found = {p.memories: at for at, p in enumerate(topology.placements) if p.layout == SPLIT}
    for span in {len(memories) for memories in found}:
        groups = [tuple(names[first : first + span]) for first in range(0, len(names), span)]
        if all(group in found for group in groups):
            return tuple(found[group] for group in groups)
    return ()


NO_DIMMS = DimmIndices((), (), ())


def believed_costs(
    costs: Costs,
    *,
    contention: str = OWN_SHARE,
    shared: bool = True,
    pipelined: bool = False,
) -> TriCosts:
    """Tables as measured."""
    topology, dimms = costs.topology, DimmIndices.of(costs.topology)
    if not dimms.count:
        return offloading_costs(
            Belief.of(costs), contention=contention, shared=shared, pipelined=pipelined
        )
    gpu, cpu = topology.device(GPU), topology.device(CPU)
    on_gpu = costs.expert_ns[gpu, IN_VRAM].astype(np.float64)
    on_cpu = costs.expert_ns[cpu, IN_DRAM].astype(np.float64)
    pcie = float(costs.move_ns[topology.lane(PCIE) - len(topology.devices)])
    striped = float(on_cpu[_PROBE])
    localized = float(costs.expert_ns[cpu, dimms.placements[0], _PROBE])
    channels = dimms.channels or _channels(dimms.count, localized / striped)
    near = np.full_like(on_cpu, np.inf)
    split: list[Floats] = []
    if dimms.units:
        unit = topology.device(dimms.units[0])
        near = costs.expert_ns[unit, dimms.placements[0]].astype(np.float64)
        if dimms.splits and dimms.splits[0] in topology.reads[unit]:
            split = [costs.expert_ns[unit, dimms.splits[0]].astype(np.float64)]
    return tri_costs(
        np.stack([on_gpu, on_cpu, near, *split]),
        pcie_ns=pcie,
        striped_ns=striped,
        localized_ns=max(localized, striped),
        internal_ns=float(near[_PROBE]) if dimms.units else striped,
        dimms=dimms.count,
        channels=channels,
        channel_ns=_channel_ns(striped, localized, channels) if dimms.channels else striped,
        contention=contention,
        shared=shared,
        pipelined=pipelined,
        units=len(dimms.units),
    )


def offloading_costs(
    belief: Belief, *, pipelined: bool, contention: str = OWN_SHARE, shared: bool = True
) -> TriCosts:
    """GPU, CPU and the link between them: main memory is one piece, no unit computes, and what
    reads share is in the tables already."""
    gpu, cpu = belief.tables.astype(np.float64)
    read = max(float(cpu[min(_PROBE, len(cpu) - 1)]), 1.0)
    return tri_costs(
        np.stack([gpu, cpu, np.full_like(cpu, np.inf)]),
        pcie_ns=max(float(belief.transfer_ns), 1.0),
        striped_ns=read,
        localized_ns=read,
        internal_ns=read,
        dimms=1,
        channels=1,
        contention="none",
        shared=False,
        pipelined=pipelined,
        units=0,
    )


def _channels(dimms: int, ratio: float) -> int:
    """The channels where the machine does not state them: how much faster stripes are read than one
    DIMM, which is too few where the CPU is slower than all channels together."""
    possible = [n for n in range(1, dimms + 1) if dimms % n == 0]
    return min(possible, key=lambda n: abs(n - ratio), default=1)


def _channel_ns(striped: float, localized: float, channels: int) -> float:
    """The time of a striped read on every channel, from the CPU's times out of stripes and out of
    one DIMM: as long as the CPU takes, unless that is clearly more than the channels need. Below
    that, the difference is what every expert costs besides."""
    needed = localized / channels
    return needed if striped > _CLEARLY * needed else striped


def places_of(view: View, dimms: DimmIndices, layer: int) -> Places:
    """A layer's, as a body sees it: one piece of main memory counts as striped."""
    located = view.located[:, layer]
    whole = located[list(dimms.placements)] if dimms.count else located[:0]
    dimm = np.full(located.shape[1], NO_DIMM, dtype=np.int64)
    span = np.ones(located.shape[1], dtype=np.int64)
    if len(whole):
        dimm = np.where(whole.any(axis=0), whole.argmax(axis=0), NO_DIMM).astype(np.int64)
    if dimms.splits:
        split = located[list(dimms.splits)]
        divided = split.any(axis=0) & (dimm == NO_DIMM)
        dimm[divided] = split.argmax(axis=0)[divided] * dimms.span
        span[divided] = dimms.span
    return Places(located[IN_VRAM].astype(np.bool_), located[IN_DRAM].astype(np.bool_), dimm, span)
