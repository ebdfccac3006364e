"""Do machines with more devices and links take the time that closed formulas say?

The invented DIMM (more_devices.py): an expert takes 3 us on it, 3 us more for the first; 31 us on
the CPU from there (11 us from main memory, 7 us more for the first); 60 us over its link."""

from __future__ import annotations

import numpy as np
import pytest

from made_up import random_steps, routing_of, small_model
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.legality import check, violations
from moesaic.core.report import LayerReport, Timeline
from moesaic.core.routing import ExpertId
from moesaic.core.step import Step
from moesaic.core.view import Flight
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.policies.belief import warm_up
from moesaic.policies.costs import UNREADABLE
from more_devices import with_a_dimm, with_four_dimms

US = 1000
MODEL = small_model(layers=2, experts=8, top_k=8)


def machine_of(spec: MachineSpec, slots: int = 4) -> SimMachine:
    return SimMachine(Physics(spec, MODEL), slots, Timeline())


def run(machine: SimMachine, layer: int, plan: LayerPlan) -> LayerReport:
    """One layer of one token that wants the experts the plan names, the plan proved legal."""
    experts = sorted({e for queue in plan.queues.values() for e in queue})
    routing = routing_of(layer, [experts])
    machine.begin(Step.decode(1), lambda _: routing)
    machine.route(layer)
    check(plan, routing.loads(MODEL.num_experts), machine.view(layer))
    return machine.run(plan)


def took_us(report: LayerReport) -> float:
    return (report.end_ns - report.start_ns) / US


def with_experts_in(placement: str, *experts: int) -> SimMachine:
    spec = with_a_dimm() if placement.endswith("dimm") else with_four_dimms()
    machine = machine_of(spec)
    where = machine.topology.placement(placement)
    machine.memory.place([ExpertId(layer, e) for layer in (0, 1) for e in experts][:2], where)
    return machine


def test_a_third_device_works_in_parallel() -> None:
    """6 + 3 us on the DIMM, 18 us on the CPU: the layer takes the longer."""
    machine = with_experts_in("whole@dimm", 0)
    machine.memory.located[machine.topology.placement("whole@dimm"), 0, 1] = 1
    report = run(machine, 0, LayerPlan(0, {"ndp": (0, 1), "cpu": (2,)}))
    assert took_us(report) == 18
    spans = {(s.lane, s.expert): (s.end_ns - s.start_ns) / US for s in machine.timeline.spans}
    assert spans["ndp", 0] == 6
    assert spans["ndp", 1] == 3


def test_capacity_becomes_slots() -> None:
    machine = machine_of(with_a_dimm(), slots=5)
    slots = dict(zip(machine.topology.memory_index, machine.memory.memory_slots, strict=True))
    assert (slots["vram"], slots["dimm"]) == (5, 2), "120 kB hold two experts of 60 kB"


def test_a_device_reads_from_the_nearest_placement() -> None:
    """The CPU has expert 0 in main memory too, and reads it there: 11 us, not 31."""
    machine = with_experts_in("whole@dimm", 0)
    assert took_us(run(machine, 0, LayerPlan(0, {"cpu": (0,)}))) == 7 + 11
    four = with_experts_in("whole@dimm1", 3)
    report = run(four, 0, LayerPlan(0, {"cpu": (3,)}))
    assert took_us(report) == 7 + 1 + 40, "60 kB at 1.5 GB/s: it lies nowhere else"


def test_links_carry_at_the_same_time() -> None:
    """34 us over PCIe overlap with 60 us over the DIMM's link; each device waits for its own."""
    machine = machine_of(with_a_dimm())
    dimm = machine.topology.placement("whole@dimm")
    moves = (Move(0, 0), Move(0, 1, destination=dimm))
    report = run(machine, 0, LayerPlan(0, {"gpu": (0,), "ndp": (1,)}, moves))
    assert took_us(report) == 60 + 6
    gpu = next(s for s in machine.timeline.spans if s.lane == "gpu" and s.kind == "expert")
    assert gpu.start_ns - report.start_ns == 34 * US
    assert machine.bytes_moved == report.bytes_moved == 2 * 60_000


def test_the_view_shows_every_move_under_way_and_every_lane() -> None:
    machine = machine_of(with_a_dimm())
    dimm = machine.topology.placement("whole@dimm")
    background = (Move(1, 0), Move(1, 1, destination=dimm), Move(1, 2, destination=dimm))
    run(machine, 0, LayerPlan(0, {"cpu": (0,)}, (), background))
    machine.moves.cancel_background()
    view = machine.view(0)
    assert view.in_flight == (Flight(1, 0, 16 * US), Flight(1, 1, 42 * US, dimm))
    lanes = dict(zip(machine.topology.lanes, view.busy_ns.tolist(), strict=True))
    assert (lanes["pcie"], lanes["dimm-bus"], lanes["ndp"]) == (16 * US, 42 * US, 0)
    machine.clock.advance(100 * US)
    assert machine.memory.located[dimm, 1].tolist() == [0, 1, 0, 0, 0, 0, 0, 0]
    assert machine.memory.resident[1].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]


def test_parts_of_an_expert_are_computed_side_by_side() -> None:
    """A quarter on the DIMM: 0.5 + 1 us, and 3 for the first; the rest on the CPU: 7.5 + 1 + 7."""
    machine = with_experts_in("whole@dimm", 0)
    plan = LayerPlan(0, {"cpu": (0,), "ndp": (0,)}, parts={0: {"cpu": 750, "ndp": 250}})
    assert took_us(run(machine, 0, plan)) == 15.5
    spans = [s for s in machine.timeline.spans if s.kind == "expert"]
    assert [(s.lane, (s.end_ns - s.start_ns) / US) for s in spans] == [("ndp", 4.5), ("cpu", 15.5)]


def test_a_relayout_arrives_when_its_last_piece_has_and_is_not_half_forgotten() -> None:
    """From stripes to DIMM 0: three links carry a quarter each, 60 us; one of them is busy with
    another expert for 240 us first. The next layer forgets what has not started, but not the rest
    of what has."""
    machine = with_experts_in("striped@dimm0+dimm1+dimm2+dimm3", 0)
    topology = machine.topology
    stripes = topology.placement("striped@dimm0+dimm1+dimm2+dimm3")
    first, second, third = (topology.placement(f"whole@dimm{at}") for at in range(3))
    machine.memory.place([ExpertId(1, 5)], second)
    background = (
        Move(1, 5, source=second, destination=third),
        Move(1, 0, source=stripes, destination=first, leaves=True),
    )
    run(machine, 0, LayerPlan(0, {"cpu": (0,)}, (), background))
    machine.moves.cancel_background()
    machine.clock.advance(290 * US - machine.clock.now)
    assert not machine.memory.located[first, 1, 0]
    assert machine.memory.located[stripes, 1, 0], "it can still be read there"
    machine.clock.advance(60 * US)
    assert machine.memory.located[first, 1, 0]
    assert not machine.memory.located[stripes, 1, 0]
    moved = [s for s in machine.timeline.spans if s.kind == "prefetch" and s.expert == 0]
    assert sorted((s.end_ns - s.start_ns) / US for s in moved) == [60, 60, 60]
    assert machine.bytes_moved == 60_000 + 3 * 15_000


@pytest.mark.parametrize("spec", [with_a_dimm(), with_four_dimms()], ids=["one", "four"])
def test_a_brain_can_measure_every_device_and_link(spec: MachineSpec) -> None:
    physics = Physics(spec, MODEL)
    machine = SimMachine(physics, 4)
    topology = machine.topology
    costs = warm_up(machine, 4, topology).covering(9).costs
    assert costs is not None
    for at, device in enumerate(topology.devices):
        assert costs.first_ns[at] == physics.first_ns(device.name)
        for p, placement in enumerate(topology.placements):
            expected = UNREADABLE
            if topology.readable[at, p]:
                expected = physics.expert_ns(device.name, 2, placement.name)
            assert costs.expert_ns[at, p, 2] == expected
            assert (costs.expert_ns[at, p, 9] == UNREADABLE) == (expected == UNREADABLE)
    links = [physics.move_ns(link.name) for link in topology.links]
    assert costs.move_ns.tolist() == links


def test_equal_runs_give_equal_bits_and_all_memory_adds_up() -> None:
    """Random legal moves between all placements of the four DIMMs, over many layers."""

    def spans(seed: int) -> list[object]:
        machine = machine_of(with_four_dimms(), slots=6)
        topology, memory = machine.topology, machine.memory
        stripes = topology.placement("striped@dimm0+dimm1+dimm2+dimm3")
        everyone = [ExpertId(layer, e) for layer in (0, 1) for e in range(8)]
        memory.place(everyone, stripes)
        rng = np.random.default_rng(seed)
        for step in random_steps(seed, 12, MODEL):
            machine.begin(step.step, step.layer)
            for layer in (0, 1):
                routing, view = machine.route(layer), machine.view(layer)
                plan, loads = _anywhere(layer, machine), routing.loads(MODEL.num_experts)
                check(plan, loads, view)
                for move in _random_moves(rng, machine):
                    more = plan._replace(background=(*plan.background, move))
                    plan = plan if list(violations(more, loads, view)) else more
                machine.run(plan)
            machine.finish()
        machine.clock.advance(10_000 * US)
        for at, placed in enumerate(topology.memories):
            taken = sum(
                int(memory.located[p].sum()) * topology.units_in(p)
                for p in range(len(topology.placements))
                if at in topology.memories_of[p]
            )
            assert memory.memory_occupied[at] == taken, placed.name
        assert (memory.located.sum(axis=0) >= 1).all(), "no expert is lost"
        assert machine.bytes_moved > 10 * 60_000
        return list(machine.timeline.spans)

    assert spans(1) == spans(1)
    assert spans(1) != spans(2)


def _random_moves(rng: np.random.Generator, machine: SimMachine) -> tuple[Move, ...]:
    topology, located = machine.topology, machine.memory.located
    moves: list[Move] = []
    for _ in range(3):
        layer, expert = int(rng.integers(2)), int(rng.integers(8))
        source = int(rng.choice(np.flatnonzero(located[:, layer, expert])))
        destination = int(rng.integers(len(topology.placements)))
        moves.append(
            Move(
                layer, expert, source=source, destination=destination,
                leaves=bool(rng.integers(2)),
            )
        )  # fmt: skip
    return tuple(moves)


def _anywhere(layer: int, machine: SimMachine) -> LayerPlan:
    """A device that can read an expert computes it; the last one that can."""
    queues: dict[str, tuple[int, ...]] = {}
    topology, located = machine.topology, machine.memory.located
    for expert in range(8):
        able = [
            device.name
            for at, device in enumerate(topology.devices)
            if any(located[p, layer, expert] for p in topology.reads[at])
        ]
        queues[able[-1]] = (*queues.get(able[-1], ()), expert)
    return LayerPlan(layer, queues)
