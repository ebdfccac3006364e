"""Experts split over several DIMMs: does every unit compute its part in the time that takes, with
its own activations on its own channel, and does the makespan model say the same?"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from near_data_arithmetic import NearDataArithmetic

from dimm_machines import dimm_machine
from made_up import random_steps, routing_of, small_model
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.layer_plan import LayerPlan
from moesaic.core.legality import violations
from moesaic.core.offloading import IN_DRAM
from moesaic.core.report import Timeline
from moesaic.core.routing import ExpertId
from moesaic.core.step import Step
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.machine_topology import BadReference
from moesaic.kernels.base import ExpertWeights
from moesaic.kernels.reference import ReferenceKernel
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.expert_shape import ExpertShape
from moesaic.policies.belief import warm_up
from moesaic.policies.compose import Composition
from moesaic.policies.layout.base import Profile
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.shape import Shape
from moesaic.policies.tri.costs import ON_NDP
from moesaic.policies.tri.layer import FIRST_DIMM, Layer, busy_times, num_resources, options_of
from moesaic.policies.tri.machine import DimmIndices, believed_costs, places_of

MODEL = small_model(layers=2, experts=8, top_k=8)
GROUPS = ("split@dimm0+dimm1", "split@dimm2+dimm3")
HALVES = {"ndp0": 500, "ndp1": 500}


def machine_of(spec: MachineSpec, placed: dict[int, str]) -> SimMachine:
    machine = SimMachine(Physics(spec, MODEL), 4, Timeline())
    for expert, placement in placed.items():
        machine.memory.place([ExpertId(0, expert)], machine.topology.placement(placement))
    machine.fill_main_memory()
    return machine


def ends(machine: SimMachine, plan: LayerPlan, tokens: int = 1) -> dict[tuple[str, int], int]:
    experts = sorted({e for queue in plan.queues.values() for e in queue})
    routing = routing_of(0, [experts] * tokens)
    machine.begin(Step.decode(tokens), lambda _: routing)
    machine.route(0)
    assert not [*violations(plan, routing.loads(8), machine.view(0))]
    start = machine.clock.now
    machine.run(plan)
    machine.clock.advance(1_000_000)
    spans = [s for s in machine.timeline.spans if s.kind == "expert"]
    return {(s.lane, s.expert): s.end_ns - start for s in spans}


@pytest.mark.parametrize(("tokens", "ns"), [(1, 5134), (4, 3000 + 1000 + 3000 + 2 + 533)])
def test_a_part_is_read_and_multiplied_in_half_the_time(tokens: int, ns: int) -> None:
    """3 us to wake the unit, 1 us of overhead; 1 us to read half of the weights and 0.75 us per
    token to multiply, two tokens at a time; 133 ns per token on the channel, as for a whole one."""
    machine = machine_of(dimm_machine(split=2), {0: GROUPS[0]})
    plan = LayerPlan(0, {"ndp0": (0,), "ndp1": (0,)}, parts={0: HALVES})
    found = ends(machine, plan, tokens)
    assert found["ndp0", 0] == found["ndp1", 0] == pytest.approx(ns, abs=1)


def test_every_units_channel_carries_all_activations() -> None:
    machine = machine_of(dimm_machine(split=2, sharing="pcie-first"), {})
    traffic, act = machine._dimms.traffic, machine.physics.channel_bytes(4)  # type: ignore[union-attr]
    for unit, channel in (("ndp0", "channel0"), ("ndp1", "channel1")):
        busy = traffic.expert(unit, GROUPS[0], 0, 7000, act)  # type: ignore[arg-type]
        assert busy == {f"dimm{unit[-1]}": 7000.0, channel: pytest.approx(act / 3.0)}


def test_the_host_reads_a_split_expert_over_its_dimms_channels() -> None:
    """Two of two channels: 10 us, in which both DIMMs are read all the time, and no other."""
    placed = {0: GROUPS[0], 1: "whole@dimm0", 2: "whole@dimm2"}
    machine = machine_of(dimm_machine(split=2), placed)
    found = ends(machine, LayerPlan(0, {"cpu": (0,), "ndp0": (1,), "ndp2": (2,)}))
    assert found["cpu", 0] == 10_000
    assert found["ndp0", 1] == pytest.approx(16_134, abs=2)
    assert found["ndp2", 2] == 6134


@pytest.mark.parametrize("parts", [{}, {0: {"ndp0": 300, "ndp1": 700}}])
def test_a_unit_has_no_more_than_its_part(parts: dict[int, dict[str, int]]) -> None:
    machine = machine_of(dimm_machine(split=2), {0: GROUPS[0]})
    queues = {"ndp0": (0,), "ndp1": (0,)} if parts else {"ndp0": (0,)}
    plan = LayerPlan(0, queues, parts=parts)
    said = [*violations(plan, routing_of(0, [[0]]).loads(8), machine.view(0))]
    assert any("one of 2 parts of expert 0" in each for each in said)


def test_a_split_expert_takes_a_part_of_each_memory() -> None:
    machine = machine_of(dimm_machine(split=2), {0: GROUPS[0], 1: GROUPS[1], 2: "whole@dimm3"})
    memory, units = machine.memory, machine.topology.units
    striped = 5 * units // 4  # the other five experts of layer 0, over all four
    held = [int(memory.memory_held[memory.topology.memory(f"dimm{at}"), 0]) for at in range(4)]
    assert held == [striped + units // 2] * 2 + [striped + units // 2, striped + 3 * units // 2]


def test_groups_must_divide_the_dimms() -> None:
    with pytest.raises(BadReference, match=r"dimms.split: expected a divisor of the 4 DIMMs"):
        dimm_machine(split=3)


def test_the_makespan_model_agrees_with_the_simulator() -> None:
    """Two split experts and a localized one in the same DIMMs, several tokens each."""
    placed = {0: GROUPS[0], 1: GROUPS[0], 2: "whole@dimm1"}
    machine = machine_of(dimm_machine(split=2, contention="none"), placed)
    costs = warm_up(machine, 4, machine.topology).costs
    assert costs is not None
    dimms, tri = DimmIndices.of(costs.topology), believed_costs(costs)
    assert (dimms.span, len(dimms.splits)) == (2, 2)
    places = places_of(machine.view(0), dimms, 0)
    assert (places.dimm[:3].tolist(), places.span[:3].tolist()) == ([0, 0, 1], [2, 2, 1])
    base, active = np.zeros(num_resources(tri)), slice(0, 3)
    layer = Layer(
        np.full(3, 4), places.resident[active], places.striped[active], places.dimm[active],
        places.span[active], base,
    )  # fmt: skip
    busy = busy_times(options_of(tri, layer), np.full(3, ON_NDP))
    plan = LayerPlan(0, {"ndp0": (0, 1), "ndp1": (0, 1, 2)}, parts={0: HALVES, 1: HALVES})
    found = ends(machine, plan, 4)
    first = int(costs.first_ns[costs.topology.device("ndp0")])
    assert found["ndp0", 1] == busy[FIRST_DIMM] + first
    assert found["ndp1", 2] == busy[FIRST_DIMM + 1] + first


@pytest.mark.parametrize("layout", ["offline:splits=4", "trimoe:splits=4"])
@pytest.mark.parametrize("schedule", ["trimoe", "tri-balanced"])
def test_layouts_with_splits_run(layout: str, schedule: str) -> None:
    """Every plan is checked; split experts are computed by both units of their group."""
    model = small_model(layers=3, experts=12, top_k=3)
    machine = SimMachine(Physics(dimm_machine(split=2), model), 3, Timeline())
    policies = PolicySet.of(
        schedule=schedule, cache="pinned", prefetch="none", layout=layout, promote=False
    )
    composition = Composition(policies, Shape(3, 12, 3), 3, checked=True)
    belief = warm_up(machine, 8, machine.topology)
    machine.memory.place([ExpertId(at, 0) for at in range(3)])
    first, *rest = random_steps(1, 7, model, 8)
    loads = np.stack([first.layer(at).loads(12) for at in range(3)])
    made = composition.layout()
    where = made.initial(Profile(loads[np.newaxis], belief), machine.memory.resident > 0)
    splits = DimmIndices.of(machine.topology).splits
    assert (np.isin(where, splits).sum(axis=1) == 4).all()
    for placement in np.unique(where[where != IN_DRAM]).tolist():
        experts = [ExpertId(*at) for at in np.argwhere(where == placement).tolist()]
        machine.memory.place(experts, placement)
    machine.fill_main_memory()
    brain = composition.brain(belief, layout=made)
    for step in rest:
        machine.step(step, brain)
    spans = [s for s in machine.timeline.spans if s.kind == "expert" and s.lane.startswith("ndp")]
    pairs = {(s.layer, s.expert, s.lane) for s in spans if where[s.layer, s.expert] == splits[0]}
    assert pairs, "some were computed near the data"
    assert all((layer, e, "ndp0") in pairs and (layer, e, "ndp1") in pairs for layer, e, _ in pairs)


def test_splits_without_groups_are_refused() -> None:
    machine = SimMachine(Physics(dimm_machine(), MODEL), 3)
    composition = Composition(
        PolicySet.of(schedule="trimoe", cache="pinned", prefetch="none", layout="offline:splits=2",
                     promote=False),
        Shape(2, 8, 8), 3,
    )  # fmt: skip
    profile = Profile(np.ones((1, 2, 8), dtype=np.int64), warm_up(machine, 2, machine.topology))
    with pytest.raises(ImpossibleSetting, match=r"dimms.split"):
        composition.layout().initial(profile, np.zeros((2, 8), dtype=np.bool_))


def test_parts_of_an_expert_add_up_to_it() -> None:
    """FP16 sums of parts: each is rounded once, so within two roundings of the whole."""
    kernel = ReferenceKernel(ExpertShape(16, 24, "silu"), "bf16")
    torch.manual_seed(0)
    gate, up, down = torch.randn(24, 16) / 4, torch.randn(24, 16) / 4, torch.randn(16, 24) / 5
    block = torch.zeros(kernel.block_bytes, dtype=torch.uint8)
    kernel.pack(ExpertWeights(gate, up, down), block)
    near, rows = NearDataArithmetic(kernel), torch.randn(3, 16)
    whole = near.expert(block, rows).float()
    parts = [near.expert(block, rows, slice(*ends)).float() for ends in ((0, 8), (8, 20), (20, 24))]
    torch.testing.assert_close(sum(parts), whole, rtol=2e-3, atol=2e-3)
    assert not torch.allclose(parts[0], whole, atol=0.05)
