"""What is described of a machine, as the sections and tables of its file. What follows from that
(`machine_spec.py`) is derived by functions of this (`machine_topology.py`, `dimm_parts.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moesaic.hardware.dimms import DimmLinkSpec, DimmsSpec, NdpSpec
from moesaic.hardware.link_use import LinkUseSpec
from moesaic.hardware.numbers import Checked, NotNegative, Share
from moesaic.hardware.parts import (
    LinkSpec,
    MemorySpec,
    PlacementSpec,
    ResourceSpec,
    RouteSpec,
    UnifiedSpec,
)
from moesaic.hardware.processors import CpuSpec, DeviceSpec, GpuSpec


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


@dataclass(frozen=True, slots=True)
class MachineDescription:
    """One machine. `sources` says for every number ("gpu.memory_gb") where it comes from. Beside
    GPU, CPU and the link between them it may have other devices, memories and links, by name, and
    DIMMs as main memory, which stand for many of those."""

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
