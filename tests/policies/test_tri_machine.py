"""Machines with DIMMs, and without, as the makespan model of three devices sees them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from made_up import small_machine, small_model
from moesaic.core.offloading import IN_DRAM, IN_VRAM
from moesaic.core.routing import ExpertId
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.policies.belief import warm_up
from moesaic.policies.costs import Costs
from moesaic.policies.tri.layer import NO_DIMM
from moesaic.policies.tri.machine import DimmIndices, believed_costs, places_of
from more_devices import with_dimms

MODEL = small_model(layers=2, experts=5, top_k=2)


def simulated(machine: MachineSpec) -> tuple[SimMachine, Costs]:
    made = SimMachine(Physics(machine, MODEL), 2)
    costs = warm_up(made, 8, made.topology).costs
    assert costs is not None
    return made, costs


def partly_computing(units: int) -> MachineSpec:
    """Four DIMMs of which the first so many compute."""
    machine = with_dimms(4)
    names = [f"dimm{number}" for number in range(units, 4)]
    memories = {
        name: replace(memory, owner="" if name in names else memory.owner)
        for name, memory in machine.memories.items()
    }
    devices = {f"ndp{number}": machine.devices[f"ndp{number}"] for number in range(units)}
    return replace(machine, memories=memories, devices=devices)


@pytest.mark.parametrize("units", [1, 3, 4])
def test_only_dimms_of_a_device_have_a_unit(units: int) -> None:
    _, costs = simulated(partly_computing(units))
    dimms = DimmIndices.of(costs.topology)
    assert dimms.count == 4
    assert dimms.units == tuple(f"ndp{number}" for number in range(units))
    assert believed_costs(costs).units == units


@pytest.mark.parametrize(("reads_gb_s", "channels"), [(1.5, 4), (3.0, 2), (12.0, 1)])
def test_channels_are_how_much_faster_stripes_are_read(reads_gb_s: float, channels: int) -> None:
    """Stripes take 11 us, one DIMM 41, 21 or 6: never less than stripes."""
    machine = with_dimms(4)
    slow = dict.fromkeys(machine.cpu.reads_gb_s, reads_gb_s)
    _, costs = simulated(replace(machine, cpu=replace(machine.cpu, reads_gb_s=slow)))
    tri = believed_costs(costs)
    assert tri.channels == channels
    assert tri.striped_ns == 11_000
    assert tri.localized_ns == {1.5: 41_000, 3.0: 21_000, 12.0: 11_000}[reads_gb_s]


def test_the_rules_that_were_asked_for_are_in_the_costs() -> None:
    _, costs = simulated(with_dimms(4))
    usual = believed_costs(costs)
    assert (usual.shared, usual.pipelined) == (True, False)
    assert usual.striped_busy_ns == 11_000
    other = believed_costs(costs, contention="none", shared=False, pipelined=True)
    assert (other.shared, other.pipelined, other.striped_busy_ns) == (False, True, 0)
    assert other.pcie_ns == usual.pcie_ns == 34_000


def test_main_memory_of_one_piece_is_one_dimm_that_computes_nothing() -> None:
    _, costs = simulated(small_machine())
    assert DimmIndices.of(costs.topology) == DimmIndices((), (), ())
    for pipelined in (False, True):
        tri = believed_costs(costs, pipelined=pipelined)
        assert (tri.dimms, tri.channels, tri.units) == (1, 1, 0)
        assert (tri.shared, tri.pipelined) == (False, pipelined)
        assert tri.striped_ns == tri.localized_ns == tri.internal_ns == tri.compute[1, 1]
        assert (tri.striped_busy_ns, tri.localized_busy_ns) == (0, 0)
        assert np.isinf(tri.compute[2]).all()
        assert tri.pcie_ns == costs.move_ns[0]


def test_experts_are_found_where_they_lie() -> None:
    machine, costs = simulated(with_dimms(4))
    whole = machine.topology.placement_index["whole@dimm2"]
    machine.memory.place([ExpertId(1, 0), ExpertId(1, 1)], IN_DRAM)
    machine.memory.place([ExpertId(1, 2), ExpertId(1, 3)], whole)
    machine.memory.place([ExpertId(1, 1), ExpertId(1, 3)], IN_VRAM)
    found = places_of(machine.view(1), DimmIndices.of(costs.topology), 1)
    assert found.resident.tolist() == [False, True, False, True, False]
    assert found.striped[:4].tolist() == [True, True, False, False]
    assert found.dimm[:4].tolist() == [NO_DIMM, NO_DIMM, 2, 2]


def test_without_dimms_no_expert_is_in_one() -> None:
    machine, costs = simulated(small_machine())
    found = places_of(machine.view(0), DimmIndices.of(costs.topology), 0)
    assert found.dimm.tolist() == [NO_DIMM] * 5
    assert found.striped.all()
