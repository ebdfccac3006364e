"""Do background transfers use the idle link only, and give way at the next expert?"""

from __future__ import annotations

from simple_runs import (
    CPU_NS,
    FIRST_NS,
    GPU_NS,
    MOVE_NS,
    begin,
    machine_with,
    plain_physics,
    run_layer,
    spans,
)

from made_up import routing_of, small_model
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.offloading import CPU, GPU
from moesaic.core.report import Timeline
from moesaic.core.routing import ExpertId
from moesaic.core.step import Step
from moesaic.core.view import PLANNER, Flight
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.machines.sim.planning_cost import PlanningCost
from more_devices import with_dimms

ONE_CPU_EXPERT = FIRST_NS + CPU_NS  # 57: how long layer 0 takes in these tests


def test_background_starts_after_the_demand_of_its_layer() -> None:
    machine = machine_with()
    begin(machine, [[1]])
    run_layer(machine, (0,), (), (Move(0, 0),), (Move(1, 5),))
    machine.finish()
    machine.clock.advance(10 * MOVE_NS)
    (demand,), (prefetch,) = spans(machine, "transfer"), spans(machine, "prefetch")
    assert prefetch.start_ns == demand.end_ns
    assert machine.memory.resident[1, 5] == 1


def test_every_demand_goes_before_the_background() -> None:
    machine = machine_with()
    begin(machine, [[1, 1, 1]])
    demands = tuple(Move(0, e) for e in range(3))
    report = run_layer(machine, (0, 1, 2), (), demands, (Move(1, 5), Move(1, 6)))
    assert report.end_ns - report.start_ns == 3 * MOVE_NS + GPU_NS


def test_nothing_starts_between_routing_and_the_plan() -> None:
    """The first prefetch ends while the brain plans: the second may not take the link then, or
    the plan would rest on a view that is no longer true."""
    machine = machine_with(physics=plain_physics(attention=10))
    begin(machine, [[1], [1]])
    run_layer(machine, cpu=(0,), background=(Move(2, 0), Move(2, 1)))
    machine.route(1)
    machine.clock.advance(2 * MOVE_NS)
    assert machine.view(1).in_flight == ()
    assert len(spans(machine, "prefetch")) == 1


def test_a_demand_waits_for_the_transfer_under_way_and_not_for_the_queue() -> None:
    """Layer 0 takes 57, attention 10: the first prefetch has 33 left when layer 1 is planned;
    the other three are forgotten."""
    machine = machine_with(physics=plain_physics(attention=10))
    begin(machine, [[1], [1]])
    four = tuple(Move(2, e) for e in range(4))
    run_layer(machine, cpu=(0,), background=four)
    machine.route(1)
    left = MOVE_NS - ONE_CPU_EXPERT - 10
    assert machine.view(1).in_flight == (Flight(2, 0, left),)
    assert machine.view(1).pcie_busy_ns == left
    report = machine.run(LayerPlan(1, {GPU: (0,)}, (Move(1, 0),)))
    assert report.end_ns - report.start_ns == left + MOVE_NS + GPU_NS
    machine.clock.advance(10 * MOVE_NS)
    assert [s.expert for s in spans(machine, "prefetch")] == [0]
    assert machine.memory.resident[2].tolist() == [1] + [0] * 11


def test_what_has_not_started_is_forgotten_at_the_next_routing() -> None:
    """Layer and attention last 307: three prefetches end, a fourth has started, the fifth never
    does."""
    machine = machine_with(physics=plain_physics(attention=250))
    begin(machine, [[1], [1]])
    run_layer(machine, cpu=(0,), background=tuple(Move(2, e) for e in range(5)))
    run_layer(machine, cpu=(0,), layer=1)
    machine.clock.advance(10 * MOVE_NS)
    started = -(-(ONE_CPU_EXPERT + 250) // MOVE_NS)
    assert started == 4
    assert len(spans(machine, "prefetch")) == started


def test_an_expert_under_way_is_computed_when_it_arrives() -> None:
    machine = machine_with(physics=plain_physics(attention=10))
    begin(machine, [[1], [1]])
    run_layer(machine, cpu=(0,), background=(Move(1, 0),))
    report = run_layer(machine, gpu=(0,), layer=1)
    assert report.end_ns - report.start_ns == (MOVE_NS - ONE_CPU_EXPERT - 10) + GPU_NS
    assert report.hits == 0, "it was not complete when the layer was planned"
    assert report.bytes_moved == 0, "no layer demanded it"


def test_an_expert_that_arrives_during_planning_is_not_waited_for() -> None:
    machine = machine_with(physics=plain_physics(attention=10))
    begin(machine, [[1], [1]])
    run_layer(machine, cpu=(0,), background=(Move(1, 0),))
    report = run_layer(machine, gpu=(0,), layer=1, planning_ns=MOVE_NS)
    assert report.end_ns - report.start_ns == GPU_NS


def test_a_victim_leaves_when_the_transfer_starts() -> None:
    machine = machine_with([(1, 1)], slots=1)
    begin(machine, [[1]])
    move = Move(1, 0, ExpertId(1, 1))
    run_layer(machine, cpu=(0,), background=(move,))
    assert machine.memory.resident.sum() == 0
    assert machine.memory.occupied == 1, "the transfer under way holds the slot"
    machine.clock.advance(MOVE_NS)
    assert machine.memory.resident[1, :2].tolist() == [1, 0]


def test_planning_is_charged_before_the_experts_begin() -> None:
    machine = machine_with([(0, 0)])
    begin(machine, [[1]])
    report = run_layer(machine, gpu=(0,), planning_ns=40)
    assert (report.start_ns, report.end_ns) == (40, 40 + GPU_NS)
    assert machine.planning_ns == 40
    (plan,) = spans(machine, "plan")
    assert (plan.lane, plan.start_ns, plan.end_ns) == (PLANNER, 0, 40)


def test_background_starts_when_it_is_decided() -> None:
    """Deciding takes 30 of the 57 that the layer runs; the layer does not wait for it."""
    machine = machine_with()
    begin(machine, [[1]])
    machine.route(0)
    plan = LayerPlan(0, {CPU: (0,)}, (), (Move(1, 5),))
    machine.planning = PlanningCost.constant(lookahead_ns=30)
    report = machine.run(plan)
    assert report.end_ns - report.start_ns == ONE_CPU_EXPERT
    machine.clock.advance(10 * MOVE_NS)
    (prefetch,) = spans(machine, "prefetch")
    assert prefetch.start_ns == 30


def test_background_decided_after_the_next_routing_is_forgotten() -> None:
    machine = machine_with(physics=plain_physics(attention=10))
    begin(machine, [[1], [1]])
    machine.route(0)
    plan = LayerPlan(0, {CPU: (0,)}, (), (Move(2, 5),))
    machine.planning = PlanningCost.constant(lookahead_ns=ONE_CPU_EXPERT + 10 + 1)
    machine.run(plan)
    run_layer(machine, cpu=(0,), layer=1)
    machine.clock.advance(10 * MOVE_NS)
    assert spans(machine, "prefetch") == []


# A move in two pieces, the least that is more than one: is neither forgotten by itself?

US = 1000
MODEL = small_model(layers=2, experts=4, top_k=1)


def test_the_second_piece_follows_though_it_had_not_started() -> None:
    """From stripes over three DIMMs to the first: the links of the second and the third carry a
    third each, 80 us; that of the second is busy for 240 us before. Layer 1 forgets what has not
    started, but not the rest of what has."""
    machine = SimMachine(Physics(with_dimms(3), MODEL), 2, Timeline())
    topology, memory = machine.topology, machine.memory
    stripes = topology.placement("striped@dimm0+dimm1+dimm2")
    first, second, third = (topology.placement(f"whole@dimm{at}") for at in range(3))
    memory.place([ExpertId(0, 0), ExpertId(1, 0)], stripes)
    memory.place([ExpertId(1, 3)], second)
    machine.begin(Step.decode(1), lambda layer: routing_of(layer, [[0]]))
    machine.route(0)
    background = (
        Move(1, 3, source=second, destination=third),
        Move(1, 0, source=stripes, destination=first),
    )
    machine.run(LayerPlan(0, {"cpu": (0,)}, (), background))
    machine.moves.cancel_background()
    machine.clock.advance(1000 * US)
    pieces = [s for s in machine.timeline.spans if s.kind == "prefetch" and s.expert == 0]
    assert sorted((s.end_ns - s.start_ns) // US for s in pieces) == [80, 80]
    assert memory.located[first, 1, 0]
    assert not list(machine.moves.under_way)
