"""Invented machines with more than a GPU, a CPU and a link: round numbers, nothing measured."""

from __future__ import annotations

from dataclasses import replace

from made_up import small_machine
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.parts import MemorySpec, PlacementSpec, RouteSpec
from moesaic.hardware.processors import DeviceSpec


def near_data() -> DeviceSpec:
    """An expert of `small_model` (60 kB) takes 2 us of its memory's time, 1 us more in any case and
    3 us for the first of a layer."""
    return DeviceSpec("a DIMM with compute", 60.0, 0.5, {"bf16": 0.2}, 0.5, 1.0, 3.0)


def with_a_dimm() -> MachineSpec:
    """A third device with a memory of two experts, filled over a link of its own (60 us for an
    expert); the CPU reads that memory, too, at 2 GB/s (30 us)."""
    machine = small_machine()
    return replace(
        machine,
        cpu=replace(machine.cpu, reads_gb_s={"dimm": 2.0}),
        devices={"ndp": near_data()},
        memories={"dimm": MemorySpec(120e-6, "ndp")},
        links={"dimm-bus": RouteSpec(1.0, 0.0, ("dram",), ("dimm",))},
    )


def with_four_dimms() -> MachineSpec:
    return with_dimms(4)


def with_dimms(count: int) -> MachineSpec:
    """Main memory is DIMMs that compute: experts lie striped over them or whole in one, and every
    DIMM has a link to the others (240 us for a whole expert)."""
    machine = small_machine()
    names = tuple(f"dimm{number}" for number in range(count))
    return replace(
        machine,
        cpu=replace(machine.cpu, reads_gb_s=dict.fromkeys(names, 1.5)),
        devices={f"ndp{number}": near_data() for number in range(count)},
        memories={name: MemorySpec(1e-3, f"ndp{at}") for at, name in enumerate(names)},
        placements={"dram": PlacementSpec(names)},
        links={
            f"dimm-link{at}": RouteSpec(0.25, 0.0, (name,), tuple(n for n in names if n != name))
            for at, name in enumerate(names)
        },
    )
