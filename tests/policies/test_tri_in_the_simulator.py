"""Three-device systems drive a simulated machine with DIMMs, every plan proved legal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from made_up import random_steps, small_model
from moesaic.core.offloading import IN_DRAM, IN_VRAM
from moesaic.core.report import Timeline
from moesaic.core.routing import ExpertId
from moesaic.hardware.machine_reader import load_machine
from moesaic.hardware.what_if import changed
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.belief import HostReads, warm_up
from moesaic.policies.compose import Composition
from moesaic.policies.costs import Costs
from moesaic.policies.layout import offline, trimoe
from moesaic.policies.layout.base import Profile
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.shape import Shape
from moesaic.policies.tri.costs import TriCosts, cpu_ns
from moesaic.policies.tri.machine import DimmIndices, believed_costs
from more_devices import with_four_dimms

MODEL = small_model(layers=3, experts=12, top_k=3)
SLOTS, TOKENS = 3, 8


def run(policies: PolicySet, steps: int = 6) -> SimMachine:
    """One slot per layer; experts where the layout wants them, by a profile of one step."""
    machine = SimMachine(Physics(with_four_dimms(), MODEL), SLOTS, Timeline())
    composition = Composition(policies, Shape(3, 12, 3), SLOTS, checked=True)
    belief = warm_up(machine, TOKENS, machine.topology)
    machine.memory.place([ExpertId(layer, 0) for layer in range(3)], IN_VRAM)
    layout = composition.layout()
    first, *rest = random_steps(1, steps + 1, MODEL, TOKENS)
    loads = np.stack([first.layer(layer).loads(12) for layer in range(3)])
    where = layout.initial(Profile(loads[np.newaxis], belief), machine.memory.resident > 0)
    for placement in np.unique(where).tolist():
        experts = [ExpertId(*at) for at in np.argwhere(where == placement).tolist()]
        machine.memory.place(experts, placement)
    brain = composition.brain(belief, layout=layout)
    for step in rest:
        machine.step(step, brain)
    return machine


def lanes_with_experts(machine: SimMachine) -> set[str]:
    return {span.lane for span in machine.timeline.spans if span.kind == "expert"}


def test_the_belief_of_a_machine_with_dimms_is_read() -> None:
    """Round costs of more_devices.py: 11 us on the CPU from stripes, 41 from one DIMM."""
    machine = SimMachine(Physics(with_four_dimms(), MODEL), SLOTS)
    costs = warm_up(machine, TOKENS, machine.topology).costs
    assert costs is not None
    tri = believed_costs(costs)
    assert (tri.dimms, tri.channels, tri.units) == (4, 4, 4)
    assert (tri.striped_ns, tri.localized_ns, tri.internal_ns) == (11_000, 41_000, 3_000)
    assert DimmIndices.of(costs.topology).units == ("ndp0", "ndp1", "ndp2", "ndp3")


@pytest.mark.parametrize("schedule", ["trimoe", "tri-balanced"])
def test_all_three_domains_compute_and_experts_move(schedule: str) -> None:
    policies = PolicySet.of(schedule=schedule, cache="pinned", prefetch="none", layout="trimoe")
    machine = run(policies)
    lanes = lanes_with_experts(machine)
    assert any(lane.startswith("ndp") for lane in lanes)
    assert {"gpu", "cpu"} & lanes
    machine.clock.advance(10_000_000)
    in_main_memory = machine.memory.located[IN_DRAM:].sum(axis=0)
    assert (in_main_memory == 1).all(), "no expert is lost or in two places"
    assert machine.memory.located[IN_VRAM].sum() == SLOTS
    assert (machine.memory.memory_occupied <= machine.memory.memory_slots).all()


@pytest.mark.parametrize(
    ("schedule", "devices"),
    [("monde", "gpu-ndp"), ("enhanced-ktransformers", "gpu-cpu"), ("klotski", "gpu")],
)
def test_baselines_use_their_devices_only(schedule: str, devices: str) -> None:
    layout = f"trimoe:relayout=false,rebalance=false,devices={devices}"
    policies = PolicySet.of(schedule=schedule, cache="pinned", prefetch="none", layout=layout)
    names = {lane.rstrip("0123") for lane in lanes_with_experts(run(policies, 2))}
    assert names <= set(devices.split("-"))


@pytest.mark.parametrize(("machine", "slower"), [("trimoe-paper", False), ("h200-emr16-ndp", True)])
def test_channels_are_those_of_the_description(machine: str, slower: bool) -> None:
    """The reference machine's cores read 130 GB/s, less than half of what eight channels carry:
    a striped read keeps each of them busy for an eighth of a localized one's time."""
    physics = Physics(load_machine(machine), load_model("deepseek-v2-lite"))
    sim = SimMachine(physics, 8)
    costs = warm_up(sim, 4, sim.topology).costs
    assert costs is not None
    tri = believed_costs(costs)
    assert (tri.dimms, tri.channels) == (16, 8)
    assert tri.striped_busy_ns == tri.channel_ns * 8 / 16
    busy = sim._dimms.traffic.host_read(sim.topology.placements[IN_DRAM].name)  # type: ignore[union-attr]
    assert tri.striped_busy_ns == pytest.approx(busy["dimm3"], rel=0.1)
    assert tri.channel_ns == pytest.approx(busy["channel5"], rel=0.1)
    assert (tri.striped_ns > 2 * tri.channel_ns) == slower
    assert cpu_ns(tri, 1, True, 1) == costs.expert_ns[1, IN_DRAM, 1]


@pytest.mark.parametrize(
    ("rule", "sharing", "belief"),
    [("full", "none", "measured"), ("none", "pcie-first", "described")],
)
def test_layouts_believe_the_rules_of_the_description(
    rule: str, sharing: str, belief: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offline layout and the moves at run time."""
    described = changed(
        load_machine("trimoe-paper"), {"dimms.contention": rule, "dimms.sharing": sharing}
    )
    settings = Settings(
        replace(load_model("deepseek-v2-lite"), num_layers=3),
        described,
        policies=PolicySet.of(
            schedule="trimoe", cache="pinned", prefetch="none", layout="trimoe", gate="full"
        ),
        cache_ratio=0.1,
        batch=32,
        tokens=3,
        warmup=0,
        belief=belief,
    )
    asked: dict[str, set[tuple[str, bool]]] = {"offline": set(), "trimoe": set()}
    for name, module in (("offline", offline), ("trimoe", trimoe)):

        def noted(
            costs: Costs, *, contention: str, shared: bool, pipelined: bool, name: str = name
        ) -> TriCosts:
            asked[name].add((contention, shared))
            return believed_costs(costs, contention=contention, shared=shared, pipelined=pipelined)

        monkeypatch.setattr(module, "believed_costs", noted)
    simulate(settings, choose_workload(None, settings).source)
    expected = {(rule, sharing != "none")}
    assert asked == {"offline": expected, "trimoe": expected}


def test_a_wrong_belief_about_costs_keeps_the_rules() -> None:
    machine = SimMachine(Physics(with_four_dimms(), MODEL), SLOTS)
    belief = warm_up(machine, TOKENS, machine.topology)
    reads = HostReads("full", False)
    assert replace(belief, host_reads=reads).off_by({"cpu": 1.2}).host_reads == reads
