"""From the sections [dimms], [ndp] and [dimm_link] to the devices, memories, links and placements
that they stand for: ndp0, dimm0, dimm-link0-1 and so on; main memory is stripes over all DIMMs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from moesaic.core.offloading import DRAM
from moesaic.core.topology import SPLIT, Topology
from moesaic.hardware.dimms import (
    CONTENTION,
    LINK_TOPOLOGIES,
    SHARING,
    DimmLinkSpec,
    DimmsSpec,
    NdpDevice,
    NdpSpec,
)
from moesaic.hardware.machine_description import MachineDescription
from moesaic.hardware.machine_topology import BadReference
from moesaic.hardware.parts import MemorySpec, PlacementSpec, RouteSpec

M = TypeVar("M", bound=MachineDescription)
NDP, DIMM_LINK = "ndp", "dimm-link"
MAX_DIMMS = 64  # a link between any two: 4,032 of them


def expanded(spec: M) -> M:
    """The same machine in terms of single parts, without those sections."""
    dimms, ndp, link = spec.dimms, spec.ndp, spec.dimm_link
    if dimms is None:
        for section, part in (("ndp", ndp), ("dimm_link", link)):
            if part is not None:
                raise BadReference(section, "expected a section [dimms] with it")
        return spec
    check_dimms(spec, dimms)
    units = 0 if ndp is None else ndp.count
    owners = [f"{NDP}{at}" if at < units else "" for at in range(dimms.count)]
    of_one = min(dimms.host_gb_s, spec.cpu.effective_bandwidth_gb_s)
    memories = {
        name: MemorySpec(dimms.memory_gb, owner)
        for name, owner in zip(dimms.names, owners, strict=True)
    }
    return replace(
        spec,
        dimms=None,
        ndp=None,
        dimm_link=None,
        cpu=replace(
            spec.cpu,
            reads_gb_s={
                **spec.cpu.reads_gb_s,
                **dict.fromkeys(memories, of_one),
                **_reads_of_groups(spec, dimms),
            },
        ),
        devices={**spec.devices, **_units(ndp, dimms)},
        memories={**spec.memories, **memories},
        placements={
            **spec.placements,
            DRAM: PlacementSpec(dimms.names),
            **{name: PlacementSpec(group, SPLIT) for name, group in dimms.groups.items()},
        },
        links={**spec.links, **_links(dimms, link)},
    )


def on_channels(topology: Topology, dimms: DimmsSpec | None) -> Topology:
    """The same topology with the channel of every DIMM."""
    if dimms is None:
        return topology
    channel = {name: dimms.channel_of(at) for at, name in enumerate(dimms.names)}
    memories = tuple(replace(m, channel=channel.get(m.name)) for m in topology.memories)
    return replace(topology, memories=memories)


def check_dimms(spec: MachineDescription, dimms: DimmsSpec) -> None:
    """Raise `BadReference` for what cannot exist."""
    if dimms.count < 2 or dimms.count % dimms.channels or dimms.count > MAX_DIMMS:
        raise BadReference(
            "dimms.count",
            f"expected a multiple of the {dimms.channels} channels, 2 to {MAX_DIMMS}, not "
            f"{dimms.count}",
        )
    if spec.ndp is not None and spec.ndp.count > dimms.count:
        raise BadReference(
            "ndp.count", f"expected at most the {dimms.count} DIMMs, not {spec.ndp.count}"
        )
    channels_gb_s = dimms.channels * dimms.channel_gb_s
    if spec.cpu.memory_bandwidth_gb_s > channels_gb_s * (1 + 1e-9):
        raise BadReference(
            "cpu.memory_bandwidth_gb_s",
            f"expected at most what the channels have, {channels_gb_s:g} GB/s, "
            f"not {spec.cpu.memory_bandwidth_gb_s:g}",
        )
    if dimms.count % dimms.split:
        raise BadReference(
            "dimms.split", f"expected a divisor of the {dimms.count} DIMMs, not {dimms.split}"
        )
    for dtype in spec.ndp.integer_tflops if spec.ndp is not None else ():
        _one_of(f"ndp.integer_tflops.{dtype}", dtype, ("int8", "int4"))
    _one_of("dimms.contention", dimms.contention, CONTENTION)
    _one_of("dimms.sharing", dimms.sharing, SHARING)
    if spec.dimm_link is not None:
        _one_of("dimm_link.topology", spec.dimm_link.topology, LINK_TOPOLOGIES)
    for table, taken in (
        ("devices", [f"{NDP}{at}" for at in range(dimms.count)]),
        ("memories", dimms.names),
        ("placements", [DRAM, *dimms.groups]),
        ("links", _links(dimms, spec.dimm_link)),
    ):
        for name in getattr(spec, table).keys() & set(taken):
            raise BadReference(f"{table}.{name}", "expected a name that the DIMMs have not got")


def _reads_of_groups(spec: MachineDescription, dimms: DimmsSpec) -> dict[str, float]:
    """What the CPU reads split experts at: over as many channels as their DIMMs are on."""
    channels = min(dimms.split, dimms.channels)
    rate = min(channels * dimms.host_gb_s, spec.cpu.effective_bandwidth_gb_s)
    return dict.fromkeys(dimms.groups, rate)


def _units(ndp: NdpSpec | None, dimms: DimmsSpec) -> dict[str, NdpDevice]:
    """A unit computes from its own DIMM, and its part of what is split over a group of DIMMs that
    all have one."""
    if ndp is None:
        return {}
    found = {f"{NDP}{at}": _unit(ndp) for at in range(ndp.count)}
    for number, name in enumerate(dimms.groups):
        members = [f"{NDP}{number * dimms.split + at}" for at in range(dimms.split)]
        if all(member in found for member in members):
            reads = {name: ndp.internal_gb_s}
            found |= {member: replace(found[member], reads_gb_s=reads) for member in members}
    return found


def _unit(ndp: NdpSpec) -> NdpDevice:
    return NdpDevice(
        ndp.name,
        ndp.memory_bandwidth_gb_s,
        ndp.bandwidth_efficiency,
        {"bf16": ndp.tflops, **ndp.integer_tflops},
        ndp.matmul_efficiency,
        ndp.expert_overhead_us,
        ndp.first_expert_us,
        unit=ndp,
    )


def _links(dimms: DimmsSpec, link: DimmLinkSpec | None) -> dict[str, RouteSpec]:
    """The routes from every DIMM to every other; the simulator knows which ports or wires they
    share."""
    if link is None:
        return {}
    return {
        link_name(start, end): RouteSpec(
            link.port_gb_s, link.latency_us, (dimms.names[start],), (dimms.names[end],)
        )
        for start in range(dimms.count)
        for end in range(dimms.count)
        if start != end
    }


def link_name(start: int, end: int) -> str:
    """dimm-link0-1"""
    return f"{DIMM_LINK}{start}-{end}"


def _one_of(field: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise BadReference(field, f"expected one of {', '.join(known)}, not {value!r}")
