"""What a machine is: plain numbers with their units in the names, and where each comes from.

Knows nothing of files, of simulators or of policies. What cannot be true never gets into one of
these objects: `replace` on a machine is checked as well as reading one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.topology import Topology
from moesaic.core.view import PLANNER
from moesaic.hardware.dimm_parts import expanded, on_channels
from moesaic.hardware.dimms import DimmLinkSpec, DimmsSpec, NdpSpec
from moesaic.hardware.link_use import LinkUseSpec
from moesaic.hardware.machine_description import HostSpec, MachineDescription, PlannerSpec
from moesaic.hardware.machine_topology import BadReference, check_names, topology_of
from moesaic.hardware.numbers import numbers
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


class SharedResource(NamedTuple):
    """A resource as the simulator needs it: `shares` are of the whole, per lane."""

    rule: str
    shares: dict[str, float]
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineSpec(MachineDescription):
    """A machine that can be: what is described, and what follows from it. `flat` is the same in
    terms of single parts, without DIMM sections."""

    flat: MachineSpec = field(init=False, repr=False, compare=False)
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
