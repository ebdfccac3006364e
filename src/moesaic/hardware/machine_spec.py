"""What a machine is: plain numbers with their units in the names, and where each comes from.

Knows nothing of files, of simulators or of policies. What cannot be true never gets into one of
these objects: `replace` on a machine is checked as well as reading one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.topology import Topology
from moesaic.core.view import PLANNER
from moesaic.hardware.dimm_parts import expanded, on_channels
from moesaic.hardware.dimms import DimmLinkSpec, DimmsSpec, NdpSpec
from moesaic.hardware.link_use import LinkUseSpec
from moesaic.hardware.machine_topology import BadReference, check_names, topology_of
from moesaic.hardware.numbers import Checked, NotNegative, Share, numbers
from moesaic.hardware.parts import (
    PROPORTIONAL,
    LinkSpec,
    MemorySpec,
    PlacementSpec,
    ResourceSpec,
    RouteSpec,
    UnifiedSpec,
)
from moesaic.hardware.processors import CpuSpec, DeviceSpec, GpuSpec, Processor

__all__ = [
    "OPTIONAL",
    "REQUIRED_DTYPES",
    "SECTIONS",
    "TABLES",
    "BadReference",
    "CpuSpec",
    "DeviceSpec",
    "GpuSpec",
    "HostSpec",
    "LinkSpec",
    "LinkUseSpec",
    "MachineSpec",
    "MemorySpec",
    "PlacementSpec",
    "PlannerSpec",
    "ResourceSpec",
    "RouteSpec",
    "SharedResource",
    "UnifiedSpec",
    "numbers_of",
]

# Weight precisions that GPU and CPU must state a matmul rate for.
REQUIRED_DTYPES = ("bf16", "int8", "int4")


@dataclass(frozen=True, slots=True)
class PlannerSpec(Checked):
    """What deciding one layer costs: the layer waits for the first two, the look-ahead (what to
    move in the background) is decided while it runs."""

    fixed_us: NotNegative
    per_expert_us: NotNegative  # per active expert
    lookahead_us: NotNegative
    lookahead_per_token_us: NotNegative


@dataclass(frozen=True, slots=True)
class HostSpec(Checked):
    """What devices take from each other: each number is the share of something scarce (memory
    bandwidth, cores) that one needs while it works at full speed. Shares of those at work that
    add up to more than 1 slow all of them down."""

    gpu_share: Share
    cpu_share: Share
    link_share: Share
    planner_share: Share


class SharedResource(NamedTuple):
    """A resource as the simulator needs it: `shares` are of the whole, per lane."""

    rule: str
    shares: dict[str, float]
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """One machine. `sources` says for every number ("gpu.memory_gb") where it comes from. Beside
    GPU, CPU and the link between them it may have other devices, memories and links, by name, and
    DIMMs as main memory, which stand for many of those (`flat`)."""

    name: str
    title: str
    description: str
    notes: tuple[str, ...]  # what is assumed
    gpu: GpuSpec
    cpu: CpuSpec
    pcie: LinkSpec
    planner: PlannerSpec
    sources: Mapping[str, str] = field(hash=False, repr=False)
    host: HostSpec | None = None  # None: nothing is shared
    pcie_use: LinkUseSpec | None = None  # None: nothing was measured beyond `pcie`
    unified: UnifiedSpec | None = None  # None: GPU and CPU have a memory each
    devices: Mapping[str, DeviceSpec] = field(default_factory=dict, hash=False)
    memories: Mapping[str, MemorySpec] = field(default_factory=dict, hash=False)
    links: Mapping[str, RouteSpec] = field(default_factory=dict, hash=False)
    placements: Mapping[str, PlacementSpec] = field(default_factory=dict, hash=False)
    resources: Mapping[str, ResourceSpec] = field(default_factory=dict, hash=False)
    dimms: DimmsSpec | None = None  # None: main memory is one piece
    ndp: NdpSpec | None = None
    dimm_link: DimmLinkSpec | None = None
    system: str = ""  # the system found fastest here; "": none was looked for
    flat: MachineSpec = field(init=False, repr=False, compare=False)  # without DIMM sections
    _topology: Topology = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        flat = expanded(self)
        object.__setattr__(self, "flat", flat)
        if flat is self:
            check_names(self)
        topology = topology_of(self) if flat is self else on_channels(flat._topology, self.dimms)
        object.__setattr__(self, "_topology", topology)

    def topology(self) -> Topology:
        """Devices, memories and links; GPU, CPU and their link come first."""
        return self._topology

    @property
    def host_memory_gb(self) -> float:
        """Main memory, where the experts are."""
        dimms = self.dimms
        return self.cpu.memory_gb if dimms is None else dimms.count * dimms.memory_gb

    def processor(self, device: str) -> Processor:
        """What is known of a device of the topology."""
        common: dict[str, Processor] = {GPU: self.gpu, CPU: self.flat.cpu}
        return common.get(device) or self.flat.devices[device]

    def link(self, name: str) -> LinkSpec:
        return self.pcie if name == PCIE else self.flat.links[name]

    def shared(self) -> Iterator[SharedResource]:
        """Everything that several lanes draw on."""
        if self.host is not None:
            lanes = {GPU: "gpu", CPU: "cpu", PCIE: "link", PLANNER: "planner"}
            shares = {lane: getattr(self.host, f"{part}_share") for lane, part in lanes.items()}
            yield SharedResource(PROPORTIONAL, shares)
        for resource in self.resources.values():
            whole = resource.bandwidth_gb_s
            shares = {lane: draw / whole for lane, draw in resource.draws_gb_s.items()}
            yield SharedResource(resource.rule, shares, resource.first)

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Everything described, under the name of its TOML table."""
        for section in SECTIONS:
            if getattr(self, section) is not None:
                yield section, getattr(self, section)
        for table in TABLES:
            for name, part in getattr(self, table).items():
                yield f"{table}.{name}", part

    def values(self) -> dict[str, Any]:
        """Every number under the key it has in `sources`."""
        flat: dict[str, Any] = {}
        for where, part in self.parts():
            flat |= numbers_of(part, where)
        return flat


def numbers_of(part: Any, where: str) -> dict[str, Any]:
    """Every number of one part, under its key."""
    flat: dict[str, Any] = {}
    for number in numbers(type(part)):
        value, key = getattr(part, number.name), f"{where}.{number.name}"
        if number.table:
            flat |= {f"{key}.{each}": rate for each, rate in value.items()}
        else:
            flat[key] = value
    return flat


# TOML table -> class, in the order in which people read a machine.
SECTIONS: dict[str, type[Any]] = {
    "gpu": GpuSpec,
    "cpu": CpuSpec,
    "pcie": LinkSpec,
    "planner": PlannerSpec,
    "host": HostSpec,
    "pcie_use": LinkUseSpec,
    "unified": UnifiedSpec,
    "dimms": DimmsSpec,
    "ndp": NdpSpec,
    "dimm_link": DimmLinkSpec,
}
# Tables with one entry per name: [devices.NAME].
TABLES: dict[str, type[Any]] = {
    "devices": DeviceSpec,
    "memories": MemorySpec,
    "links": RouteSpec,
    "placements": PlacementSpec,
    "resources": ResourceSpec,
}
# What a description may leave out: sections, tables of any part, and numbers with a default.
OPTIONAL = frozenset(
    {
        "host",
        "pcie_use",
        "unified",
        "dimms",
        "ndp",
        "dimm_link",
        "expert_gb_s",
        "tiles_from",
        "expert_factor",
        "once_us",
        "reads_gb_s",
        "split",
        "integer_tflops",
        "cached_cpu_factor",
    }
)
