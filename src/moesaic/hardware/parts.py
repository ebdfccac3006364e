"""Parts of a machine that are described by name: memories, links, placements, shared resources."""

from __future__ import annotations

from dataclasses import dataclass, field

from moesaic.core.topology import STRIPED
from moesaic.hardware.numbers import Checked, NotNegative, PartRates, Positive

PROPORTIONAL, PRIORITY = "proportional", "priority"
RULES = (PROPORTIONAL, PRIORITY)  # how a resource is shared, see ResourceSpec


@dataclass(frozen=True, slots=True)
class LinkSpec(Checked):
    """Host to GPU."""

    bandwidth_gb_s: Positive  # large pinned copies
    latency_us: NotNegative  # per copy


@dataclass(frozen=True, slots=True)
class UnifiedSpec(Checked):
    """GPU and CPU have one memory: every expert lies in it once, and the GPU computes it where it
    lies. So there is nothing to copy, and nothing that only the CPU could reach."""

    memory_gb: Positive  # 10^9 bytes, of both together


@dataclass(frozen=True, slots=True)
class RouteSpec(LinkSpec):
    """A link from any of the memories `source` to any of `destination`."""

    source: tuple[str, ...]
    destination: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemorySpec(Checked):
    """`owner` is the device that computes from it at full speed; "" where there is none."""

    memory_gb: Positive  # 10^9 bytes
    owner: str = ""


@dataclass(frozen=True, slots=True)
class PlacementSpec(Checked):
    """Experts can lie `striped` over these memories, or `split` over them by their width, so that
    the owner of each can compute its part."""

    memories: tuple[str, ...]
    layout: str = STRIPED


@dataclass(frozen=True, slots=True)
class ResourceSpec(Checked):
    """Bandwidth that several lanes (devices and links) draw on while they work; each number says
    how much one draws at full speed. Where all of them want more than there is, `proportional`
    slows all of them alike, and `priority` serves the lanes in `first` before the others."""

    rule: str
    bandwidth_gb_s: Positive
    draws_gb_s: PartRates = field(hash=False)
    first: tuple[str, ...] = ()
