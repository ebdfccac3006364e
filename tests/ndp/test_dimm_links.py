"""Do experts move between DIMMs in the time that links and DRAM allow, and does nothing get lost?

A whole expert takes 240 us over one link of the invented machine, and 2 us of a DIMM's time at
either end."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dimm_machines import STRIPED, dimm_machine
from made_up import random_steps, routing_of, small_model
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.legality import check, violations
from moesaic.core.report import Timeline
from moesaic.core.routing import ExpertId
from moesaic.core.step import Step
from moesaic.hardware.machine_reader import load_machine
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.ndp.traffic import Traffic
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.model_zoo import load_model

US = 1000
MODEL = small_model(layers=2, experts=8, top_k=8)


def machine_of(
    spec: MachineSpec, localized: dict[int, int], model: ModelSpec = MODEL
) -> SimMachine:
    """`localized`: experts of layer 1 and the DIMM that each lies in; all others are striped."""
    machine = SimMachine(Physics(spec, model), 4, Timeline())
    for expert, dimm in localized.items():
        machine.memory.place([ExpertId(1, expert)], machine.topology.placement(f"whole@dimm{dimm}"))
    machine.fill_main_memory()
    return machine


def relayout(machine: SimMachine, *moves: tuple[int, str, str]) -> int:
    """Move experts of layer 1 at once, (expert, from, to); when the last has arrived."""
    place = machine.topology.placement
    background = tuple(
        Move(1, expert, source=place(source), destination=place(destination), leaves=True)
        for expert, source, destination in moves
    )
    routing = routing_of(0, [[0]])
    machine.begin(Step.decode(1), lambda _: routing)
    machine.route(0)
    plan = LayerPlan(0, {"cpu": (0,)}, (), background)
    check(plan, routing.loads(machine.physics.model.num_experts), machine.view(0))
    start = machine.clock.now
    machine.run(plan)
    while machine.moves.under_way:
        machine.clock.step()
    for expert, source, destination in moves:
        assert machine.memory.located[place(destination), 1, expert]
        assert not machine.memory.located[place(source), 1, expert]
    return machine.clock.now - start


@pytest.mark.parametrize(
    ("topology", "gather", "scatter", "migrate"),
    [
        ("per-dimm", 180, 180, 240),  # three quarters in or out over one port
        ("ring", 120, 120, 240),  # two of three pieces come, or go, over one neighbour's link
        ("bus", 180, 180, 240),
    ],
)
def test_one_expert(topology: str, gather: int, scatter: int, migrate: int) -> None:
    spec = dimm_machine(topology=topology)
    near = pytest.approx(gather * US, abs=3)
    assert relayout(machine_of(spec, {}), (0, STRIPED, "whole@dimm0")) == near
    machine, away = machine_of(spec, {0: 0}), (0, "whole@dimm0", STRIPED)
    assert relayout(machine, away) == pytest.approx(scatter * US, abs=3)
    assert relayout(machine_of(spec, {0: 0}), (0, "whole@dimm0", "whole@dimm1")) == migrate * US
    assert machine.probe_move(STRIPED, "whole@dimm0") == near
    assert machine.probe_move("whole@dimm0", STRIPED) == pytest.approx(scatter * US, abs=3)


@pytest.mark.parametrize(("topology", "us"), [("per-dimm", 240), ("ring", 240), ("bus", 480)])
def test_transfers_between_different_dimms_are_concurrent(topology: str, us: int) -> None:
    machine = machine_of(dimm_machine(topology=topology), {0: 0, 1: 2})
    moves = (0, "whole@dimm0", "whole@dimm1"), (1, "whole@dimm2", "whole@dimm3")
    assert relayout(machine, *moves) == pytest.approx(us * US, abs=3)
    assert machine.bytes_moved == 2 * 60_000


@pytest.mark.parametrize(("topology", "us"), [("per-dimm", 480), ("ring", 240), ("bus", 480)])
def test_two_transfers_into_one_dimm_share_its_port(topology: str, us: int) -> None:
    """On a ring they come from both sides."""
    machine = machine_of(dimm_machine(topology=topology), {0: 0, 1: 2})
    moves = (0, "whole@dimm0", "whole@dimm1"), (1, "whole@dimm2", "whole@dimm1")
    assert relayout(machine, *moves) == pytest.approx(us * US, abs=3)


def test_more_links_carry_more() -> None:
    spec = dimm_machine()
    assert spec.dimm_link is not None
    spec = replace(spec, dimm_link=replace(spec.dimm_link, links=3))
    assert relayout(machine_of(spec, {0: 0}), (0, "whole@dimm0", "whole@dimm1")) == 80 * US


def test_what_lies_in_the_right_dimm_already_is_not_moved() -> None:
    machine = machine_of(dimm_machine(), {})
    relayout(machine, (0, STRIPED, "whole@dimm0"))
    assert machine.bytes_moved == 45_000
    busy = {name for name, lane in machine.lanes.items() if "link" in name and lane.worked_ns}
    assert busy == {"dimm-link1-0", "dimm-link2-0", "dimm-link3-0"}


@pytest.mark.parametrize("topology", ["per-dimm", "ring", "bus"])
@pytest.mark.parametrize(
    ("source", "destination", "ends"),
    [
        ("whole@dimm1", "whole@dimm3", {"dimm1": 1, "dimm3": 1}),
        (STRIPED, "whole@dimm0", {"dimm0": 3 / 4, "dimm1": 1 / 4, "dimm2": 1 / 4, "dimm3": 1 / 4}),
        ("whole@dimm0", STRIPED, {"dimm0": 3 / 4, "dimm1": 1 / 4, "dimm2": 1 / 4, "dimm3": 1 / 4}),
    ],
)
def test_dram_is_busy_at_both_ends_for_every_byte(
    topology: str, source: str, destination: str, ends: dict[str, float]
) -> None:
    """2 us per expert read or written, whatever the way."""
    machine = dimm_machine(topology=topology)
    traffic, shape = Traffic(machine, 60_000), machine.topology()
    hops = shape.route(shape.placement(source), shape.placement(destination))
    assert hops is not None
    total: dict[str, float] = {}
    for hop in hops:
        carried = traffic.move(shape.links[hop.link].name, source, hop.share)
        assert carried is not None
        for name, ns in carried.busy.items():
            assert ns <= carried.ns
            total[name] = total.get(name, 0.0) + ns
    found = {
        name: ns for name, ns in total.items() if name.startswith("dimm") and name[4:].isdigit()
    }
    assert found == pytest.approx({name: 2 * US * share for name, share in ends.items()})
    if topology == "per-dimm":
        arriving = sum(ns for name, ns in total.items() if name.startswith("link-in"))
        share = sum((hop.share for hop in hops), Fraction(0))
        assert arriving == pytest.approx(float(240 * US * share))


def test_a_unit_shares_its_dimm_with_the_relayout_unit() -> None:
    """The link writes for 2 of 240 us; a unit that wants the whole DIMM has 120 parts of 121."""
    machine = machine_of(dimm_machine(), {0: 0})
    machine.memory.place([ExpertId(0, 7)], machine.topology.placement("whole@dimm1"))
    place = machine.topology.placement
    move = Move(1, 0, source=place("whole@dimm0"), destination=place("whole@dimm1"), leaves=True)
    routing = routing_of(0, [[7]])
    machine.begin(Step.decode(1), lambda _: routing)
    machine.route(0)
    report = machine.run(LayerPlan(0, {"ndp1": (7,)}, (), (move,)))
    assert report.end_ns - report.start_ns == pytest.approx(6134 * 121 / 120, abs=2)


def test_four_experts_of_the_paper_need_several_links() -> None:
    """Section 5.5: 0.63 ms for four. Qwen3's experts (37.7 MB) arrive in four DIMMs at once: 15 of
    16 stripes over two links of 25 GB/s each, 0.71 ms; over one link, twice that."""
    machine, model = load_machine("trimoe-paper"), load_model("qwen3-235b-a22b")
    assert machine.dimm_link is not None
    for links, ms in ((2, 0.708), (1, 1.416)):
        spec = replace(machine, dimm_link=replace(machine.dimm_link, links=links))
        stripes = spec.topology().placements[1].name
        moves = [(at, stripes, f"whole@dimm{4 * at}") for at in range(4)]
        taken = relayout(machine_of(spec, {}, model), *moves)
        assert taken / 1e6 == pytest.approx(ms, rel=5e-3)


@pytest.mark.parametrize("topology", ["per-dimm", "ring", "bus"])
def test_random_moves_lose_nothing_and_repeat_to_the_bit(topology: str) -> None:
    def spans(seed: int) -> list[object]:
        machine = machine_of(dimm_machine(topology=topology, sharing="pcie-first"), {})
        memory, shape = machine.memory, machine.topology
        rng = np.random.default_rng(seed)
        for step in random_steps(seed, 10, MODEL):
            machine.begin(step.step, step.layer)
            for layer in (0, 1):
                routing, view = machine.route(layer), machine.view(layer)
                loads, plan = routing.loads(8), _anywhere(layer, machine)
                for move in _host_moves(rng, machine):
                    more = plan._replace(background=(*plan.background, move))
                    plan = plan if list(violations(more, loads, view)) else more
                machine.run(plan)
            machine.finish()
        machine.clock.advance(20_000 * US)
        assert (memory.located[1:].sum(axis=0) == 1).all(), "in one host placement each"
        for at in range(1, len(shape.memories)):
            taken = sum(
                int(memory.located[p].sum()) * shape.units_in(p)
                for p in range(len(shape.placements))
                if at in shape.memories_of[p]
            )
            assert memory.memory_occupied[at] == taken <= memory.memory_slots[at]
        assert machine.bytes_moved > 5 * 45_000
        return list(machine.timeline.spans)

    assert spans(1) == spans(1)
    assert spans(1) != spans(2)


def _host_moves(rng: np.random.Generator, machine: SimMachine) -> list[Move]:
    located, moves = machine.memory.located, []
    for _ in range(4):
        layer, expert = int(rng.integers(2)), int(rng.integers(8))
        if any((m.move.layer, m.move.expert) == (layer, expert) for m in machine.moves.under_way):
            continue
        source = 1 + int(np.flatnonzero(located[1:, layer, expert])[0])
        destination = 1 + int(rng.integers(5))
        moves.append(Move(layer, expert, None, True, source, destination, leaves=True))
    return moves


def _anywhere(layer: int, machine: SimMachine) -> LayerPlan:
    """The unit where an expert lies, or the CPU."""
    queues: dict[str, tuple[int, ...]] = {}
    shape, located = machine.topology, machine.memory.located
    for expert in range(8):
        (at,) = np.flatnonzero(located[1:, layer, expert])
        device = "cpu" if at == 0 else f"ndp{at - 1}"
        assert device in shape.device_index
        queues[device] = (*queues.get(device, ()), expert)
    return LayerPlan(layer, queues)
