"""A machine's shape: devices that compute, memories, links between memories, and the placements in
which an expert can lie. Values with names; users resolve them to indices once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting, UnknownName

WHOLE, STRIPED, SPLIT = "whole", "striped", "split"


@dataclass(frozen=True, slots=True)
class Device:
    """Computes experts that lie whole in `memory`, which it reads at full speed (None: it has none
    of its own), and those in the placements named in `reads`, at a cost the machine knows."""

    name: str
    memory: str | None
    reads: tuple[str, ...] = ()  # names of placements


@dataclass(frozen=True, slots=True)
class Memory:
    """`owner` is the device that reads it at full speed. Without a capacity it is the experts'
    home: every one of them lies there, and always will. Memories on one `channel` of the host
    share its bandwidth; None: not stated."""

    name: str
    owner: str | None = None
    capacity_bytes: int | None = None
    channel: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """Copies from any of the memories `source` to any of `destination`, one piece at a time."""

    name: str
    source: tuple[str, ...]
    destination: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """A place for a complete expert: whole in one memory, in equal stripes over several, or split
    over several by its intermediate width, so that each memory's owner can compute its part."""

    layout: str
    memories: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.layout}@{'+'.join(self.memories)}"


class Hop(NamedTuple):
    """The part of a moving expert that one link carries."""

    link: int
    share: Fraction


@dataclass(frozen=True)
class Topology:
    """Indices follow the order of the tuples. The first device also computes what is not routed:
    attention, shared experts, the head."""

    devices: tuple[Device, ...]
    memories: tuple[Memory, ...]
    links: tuple[Link, ...]
    placements: tuple[Placement, ...]

    def __post_init__(self) -> None:
        for complaint in _complaints(self):
            raise ImpossibleSetting(complaint)

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """Everything that can be busy: devices, then links."""
        return (*(d.name for d in self.devices), *(link.name for link in self.links))

    @cached_property
    def lane_index(self) -> dict[str, int]:
        return _index(self.lanes)

    @cached_property
    def device_index(self) -> dict[str, int]:
        return _index([device.name for device in self.devices])

    @cached_property
    def memory_index(self) -> dict[str, int]:
        return _index([memory.name for memory in self.memories])

    @cached_property
    def placement_index(self) -> dict[str, int]:
        return _index([placement.name for placement in self.placements])

    def device(self, name: str) -> int:
        return _known("device", name, self.device_index)

    def memory(self, name: str) -> int:
        return _known("memory", name, self.memory_index)

    def placement(self, name: str) -> int:
        return _known("placement", name, self.placement_index)

    def lane(self, name: str) -> int:
        return _known("lane", name, self.lane_index)

    @cached_property
    def memories_of(self) -> tuple[tuple[int, ...], ...]:
        """Per placement, its memories."""
        return tuple(tuple(self.memory_index[m] for m in p.memories) for p in self.placements)

    @cached_property
    def units(self) -> int:
        """Slots are counted in parts of an expert, so many to a whole one, such that a stripe is
        a whole number of them: 1 where nothing is striped."""
        return lcm(*(len(placement.memories) for placement in self.placements))

    def units_in(self, placement: int) -> int:
        """What one expert takes of each memory of the placement."""
        return self.units // len(self.placements[placement].memories)

    @cached_property
    def readable(self) -> NDArray[np.uint8]:
        """[devices, placements]: 1 where the device can compute experts that lie so."""
        table = np.zeros((len(self.devices), len(self.placements)), dtype=np.uint8)
        for at, placements in enumerate(self.reads):
            table[at, list(placements)] = 1
        return table

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """Per device, the placements it can compute from; its own memory comes first."""
        return tuple(tuple(self._readable_by(device)) for device in self.devices)

    def _readable_by(self, device: Device) -> Iterator[int]:
        own = self.placement_index.get(f"{WHOLE}@{device.memory}")
        if own is not None:
            yield own
        yield from (self.placement_index[name] for name in device.reads)

    def share_of(self, device: int, placement: int) -> tuple[int, int]:
        """(which, of how many) parts of an expert that lies so the device can compute: its own
        memory's of a split expert, else all of it."""
        where, own = self.placements[placement], self.devices[device].memory
        if where.layout != SPLIT or own is None or own not in where.memories:
            return 0, 1
        return where.memories.index(own), len(where.memories)

    def route(self, source: int, destination: int) -> tuple[Hop, ...] | None:
        """What each link carries when an expert moves; None where a piece has no link to take."""
        return self._routes[source, destination]

    @cached_property
    def _routes(self) -> dict[tuple[int, int], tuple[Hop, ...] | None]:
        ends = range(len(self.placements))
        return {(a, b): self._find_route(a, b) for a in ends for b in ends}

    def _find_route(self, source: int, destination: int) -> tuple[Hop, ...] | None:
        """Every piece goes straight from where it lies to where it shall: over one link."""
        if source == destination:
            return None
        carried: dict[int, Fraction] = {}
        for start, end, share in _pieces(self.placements[source], self.placements[destination]):
            link = self._link_between(start, end)
            if link is None:
                return None
            carried[link] = carried.get(link, Fraction(0)) + share
        return tuple(Hop(link, share) for link, share in carried.items())

    def _link_between(self, source: str, destination: str) -> int | None:
        for at, link in enumerate(self.links):
            if source in link.source and destination in link.destination:
                return at
        return None


def _pieces(source: Placement, destination: Placement) -> Iterator[tuple[str, str, Fraction]]:
    """(from memory, to memory, share of the expert) of what has to move: a stripe that is cut once
    more where both are striped, and nothing for what lies in the right memory already."""
    share = Fraction(1, len(source.memories) * len(destination.memories))
    for start in source.memories:
        for end in destination.memories:
            if start != end:
                yield start, end, share


def _complaints(topology: Topology) -> Iterator[str]:
    """What is wrong with it, in words."""
    memories = [memory.name for memory in topology.memories]
    devices = [device.name for device in topology.devices]
    placements = [placement.name for placement in topology.placements]
    for kind, names in (
        ("device", devices),
        ("memory", memories),
        ("placement", placements),
        ("device or link", topology.lanes),
    ):
        for name in {n for n in names if list(names).count(n) > 1}:
            yield f"there is more than one {kind} {name!r}: each needs a name of its own"
    if not devices:
        yield "a machine needs at least one device that computes"
    for owner, name, kind, known in _references(topology):
        if name not in known:
            yield f"{owner}: there is no {kind} {name!r}; there are {', '.join(known)}"
    for placement in topology.placements:
        count = len(placement.memories)
        possible = placement.layout in (WHOLE, STRIPED, SPLIT)
        if not possible or (placement.layout == WHOLE) != (count == 1):
            yield (
                f"placement {placement.name!r}: an expert lies {WHOLE!r} in one memory, "
                f"{STRIPED!r} or {SPLIT!r} over several"
            )


def _references(topology: Topology) -> Iterator[tuple[str, str, str, list[str]]]:
    """(owner, referenced name, its kind, known names)."""
    memories = [memory.name for memory in topology.memories]
    devices = [device.name for device in topology.devices]
    placements = [placement.name for placement in topology.placements]
    for device in topology.devices:
        if device.memory is not None:
            yield f"device {device.name!r}", device.memory, "memory", memories
        for name in device.reads:
            yield f"device {device.name!r}", name, "placement", placements
    for memory in topology.memories:
        if memory.owner is not None:
            yield f"memory {memory.name!r}", memory.owner, "device", devices
    for link in topology.links:
        for end in (*link.source, *link.destination):
            yield f"link {link.name!r}", end, "memory", memories
    for placement in topology.placements:
        for name in placement.memories:
            yield f"placement {placement.name!r}", name, "memory", memories


def _index(names: Sequence[str]) -> dict[str, int]:
    return {name: at for at, name in enumerate(names)}


def _known(kind: str, name: str, index: dict[str, int]) -> int:
    if name not in index:
        raise UnknownName(kind, name, index)
    return index[name]
