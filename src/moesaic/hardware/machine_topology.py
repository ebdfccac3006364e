"""From a machine description to its topology. GPU and CPU with their memories and the link between
them are always there, and come first; what else is described by name follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isinf
from re import fullmatch

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.offloading import CPU, DRAM, GPU, PCIE, VRAM
from moesaic.core.topology import SPLIT, STRIPED, WHOLE, Device, Link, Memory, Placement, Topology
from moesaic.core.units import GB
from moesaic.core.view import PLANNER
from moesaic.hardware.machine_description import MachineDescription
from moesaic.hardware.parts import PRIORITY, RULES


class BadReference(ImpossibleSetting):
    """A part of a description names something wrongly: which field, and what was expected."""

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"{field}: {expected}")
        self.field, self.expected = field, expected


def _bytes(memory_gb: float) -> int | None:
    """None: no limit."""
    return None if isinf(memory_gb) else round(memory_gb * GB)


def topology_of(spec: MachineDescription) -> Topology:
    """Main memory is the experts' home, unless a placement takes its name: then experts lie
    striped over those memories (or elsewhere), and CPU and link read them there."""
    host = spec.placements.get(DRAM)
    owned = {part.owner: name for name, part in spec.memories.items() if part.owner}
    extra = [
        Device(name, owned.get(name), _reads(spec, part.reads_gb_s))
        for name, part in spec.devices.items()
    ]
    cpu_reads = _reads(spec, (*((DRAM,) if host else ()), *spec.cpu.reads_gb_s))
    home = () if host else (Memory(DRAM, CPU),)
    memories = (
        Memory(VRAM, GPU, _bytes(spec.gpu.memory_gb)),
        *home,
        *(Memory(n, m.owner or None, _bytes(m.memory_gb)) for n, m in spec.memories.items()),
    )
    links = (
        Link(PCIE, host.memories if host else (DRAM,), (VRAM,)),
        *(
            Link(n, _memories(spec, route.source), _memories(spec, route.destination))
            for n, route in spec.links.items()
        ),
    )
    devices = (
        Device(GPU, VRAM, _reads(spec, spec.gpu.reads_gb_s)),
        Device(CPU, None if host else DRAM, cpu_reads),
        *extra,
    )
    names = [VRAM, DRAM, *spec.memories, *(n for n in spec.placements if n != DRAM)]
    placements = tuple(_placement(spec, name) for name in names)
    return Topology(devices, memories, links, placements)


def placement_name(spec: MachineDescription, name: str) -> str:
    """The name of a placement by the short name a description has for it: a memory's, or its
    own."""
    return _placement(spec, name).name


def _placement(spec: MachineDescription, name: str) -> Placement:
    if name in spec.placements:
        return Placement(spec.placements[name].layout, spec.placements[name].memories)
    return Placement(WHOLE, (name,))


def _reads(spec: MachineDescription, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(placement_name(spec, name) for name in names)


def _memories(spec: MachineDescription, names: tuple[str, ...]) -> tuple[str, ...]:
    """A placement's name stands for its memories."""
    found: list[str] = []
    for name in names:
        found += spec.placements[name].memories if name in spec.placements else (name,)
    return tuple(found)


def check_names(spec: MachineDescription) -> None:
    """Raise `BadReference` for the first name that is taken or that nothing has."""
    taken = {
        "devices": {GPU, CPU, PCIE, PLANNER, *spec.links},
        "links": {GPU, CPU, PCIE, PLANNER},
        "memories": {VRAM, DRAM, *spec.placements},
        "placements": {VRAM},
    }
    for table, names in (*taken.items(), ("resources", set[str]())):
        for name in getattr(spec, table):
            if not fullmatch("[A-Za-z0-9_-]+", name):
                raise BadReference(f"{table}.{name}", "expected letters, digits, - and _ as a name")
            if name in names:
                raise BadReference(f"{table}.{name}", "expected a name that nothing else has")
    for field, name, known in _named(spec):
        if name not in known:
            possible = ", ".join(sorted(known))
            raise BadReference(field, f"expected one of {possible}, not {name!r}")
    for name, placement in spec.placements.items():
        if len(set(placement.memories)) != len(placement.memories) or len(placement.memories) < 2:
            raise BadReference(f"placements.{name}.memories", "expected two memories or more")
        if placement.layout not in (STRIPED, SPLIT):
            expected = f"expected {STRIPED} or {SPLIT}, not {placement.layout!r}"
            raise BadReference(f"placements.{name}.layout", expected)
    if spec.unified is not None:
        _check_unified(spec, spec.unified.memory_gb)
    for name, resource in spec.resources.items():
        if (resource.rule == PRIORITY) != bool(resource.first):
            raise BadReference(
                f"resources.{name}.first", f"expected lanes with the rule {PRIORITY!r}, and only so"
            )


def _check_unified(spec: MachineDescription, whole_gb: float) -> None:
    for part in ("gpu", "cpu"):
        if getattr(spec, part).memory_gb > whole_gb:
            raise BadReference(
                f"{part}.memory_gb", f"expected at most the {whole_gb:g} GB of unified.memory_gb"
            )


def _named(spec: MachineDescription) -> Iterator[tuple[str, str, set[str]]]:
    """(field, what it names, what there is to name)."""
    memories = {VRAM, *spec.memories} | (set() if DRAM in spec.placements else {DRAM})
    placed = memories | set(spec.placements)
    lanes = {GPU, CPU, PCIE, PLANNER, *spec.devices, *spec.links}
    readers = {"gpu": spec.gpu, "cpu": spec.cpu}
    readers |= {f"devices.{name}": part for name, part in spec.devices.items()}
    for where, reader in readers.items():
        yield from ((f"{where}.reads_gb_s.{n}", n, placed) for n in reader.reads_gb_s)
    for name, memory in spec.memories.items():
        if memory.owner:
            yield f"memories.{name}.owner", memory.owner, set(spec.devices)
    for name, route in spec.links.items():
        yield from ((f"links.{name}.source", n, placed) for n in route.source)
        yield from ((f"links.{name}.destination", n, placed) for n in route.destination)
    for name, placement in spec.placements.items():
        yield from ((f"placements.{name}.memories", n, memories) for n in placement.memories)
    for name, resource in spec.resources.items():
        yield f"resources.{name}.rule", resource.rule, set(RULES)
        draws: set[str] = set(resource.draws_gb_s)
        yield from ((f"resources.{name}.draws_gb_s.{n}", n, lanes) for n in sorted(draws))
        yield from ((f"resources.{name}.first", n, draws) for n in resource.first)
