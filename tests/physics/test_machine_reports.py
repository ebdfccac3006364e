"""What the simulated machine says of itself and what it charges, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from simple_runs import MOVE_NS, begin, machine_with, plain_physics, run_layer, spans

from made_up import routing_of, small_machine, small_model
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.offloading import CPU, GPU
from moesaic.core.report import LayerReport, Span, StepReport, Timeline
from moesaic.core.routing import Forecast, LayerRouting
from moesaic.core.step import Step
from moesaic.core.view import PLANNER, View
from moesaic.hardware.machine_spec import HostSpec, PlannerSpec
from moesaic.machines.loop import run_layers
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.machines.sim.planning_cost import PlanningCost
from more_devices import with_a_dimm

US = 1000


def test_a_machine_names_its_devices() -> None:
    assert SimMachine(Physics(with_a_dimm(), small_model()), 2).capabilities.devices == (
        "gpu", "cpu", "ndp"
    )  # fmt: skip


def test_an_idle_machine_has_idle_lanes() -> None:
    assert machine_with().view(0).busy_ns.tolist() == [0, 0, 0]


def test_routings_are_numbered_by_step() -> None:
    machine = machine_with()
    found = []
    for _ in range(3):
        begin(machine, [[1]])
        found.append(machine.route(0).step)
        machine.run(LayerPlan(0, {CPU: (0,)}))
    assert found == [0, 1, 2]


@pytest.mark.parametrize(
    ("layer", "expert", "coming"), [(1, 5, 1), (1, 4, 0), (2, 5, 0), (2, 4, 0)]
)
def test_coming_counts_experts_of_this_layer_that_are_used(
    layer: int, expert: int, coming: int
) -> None:
    """Expert 5 of layer 1 is under way when the layer is planned."""
    machine = machine_with()
    loads = [[1], *([[0] * expert + [1]] * 2)]
    begin(machine, loads)
    run_layer(machine, cpu=(0,), background=(Move(1, 5),))
    machine.route(layer)
    waits = (layer, expert) == (1, 5)
    report = machine.run(LayerPlan(layer, {GPU if waits else CPU: (expert,)}))
    assert report.coming == coming


def test_deciding_shows_in_the_timeline_where_it_takes_time() -> None:
    machine = machine_with()
    begin(machine, [[1], [1]])
    run_layer(machine, cpu=(0,), planning_ns=40)
    assert spans(machine, "plan") == [Span(PLANNER, "plan", 0, 40, 0, -1, 0)]
    run_layer(machine, cpu=(0,), layer=1)
    assert len(spans(machine, "plan")) == 1


def test_attention_and_shared_experts_say_how_many_tokens_they_serve() -> None:
    machine = machine_with(physics=plain_physics(attention=20, shared=35))
    routing = routing_of(0, [[0], [0], [0]])
    machine.begin(Step.decode(3), lambda layer: routing)
    run_layer(machine, cpu=(0,))
    assert [(s.layer, s.tokens) for s in spans(machine, "dense")] == [(0, 3), (0, 3)]


def test_a_layer_waits_for_the_look_ahead() -> None:
    """Where the planner needs a share of the host it has a lane: 300 of look-ahead, 57 of layer."""
    shared = replace(small_machine(), host=HostSpec(0.1, 0.1, 0.1, 0.1))
    machine = SimMachine(replace(plain_physics(), machine=shared), 6, Timeline())
    begin(machine, [[1], [1]])
    machine.route(1)
    machine.planning = PlanningCost.constant(0, 300)
    report = machine.run(LayerPlan(1, {CPU: (0,)}))
    assert report.end_ns - report.start_ns == 300
    assert spans(machine, "plan") == [Span(PLANNER, "plan", 0, 300, 1, -1, 0)]


def test_layers_without_experts_after_the_last_count_too() -> None:
    """Two follow; with them and the head the step ends."""
    model = replace(small_model(layers=1, dense=3), moe_layers=(1,))
    physics = Physics(small_machine(), model)
    machine = SimMachine(physics, 6, Timeline())
    step = Step.decode(1)
    machine.begin(step, lambda layer: routing_of(layer, [[0]]))
    machine.route(0)
    machine.run(LayerPlan(0, {CPU: (0,)}))
    before = machine.clock.now
    machine.finish()
    took = 2 * physics.dense_layer_ns(GPU, step) + physics.head_ns(1)
    assert machine.clock.now - before == took


def test_planning_costs_by_experts_and_tokens() -> None:
    cost = PlanningCost.of(PlannerSpec(1.0, 0.5, 2.0, 0.25))
    assert cost.decision_ns(8, 4) == 3 * US
    assert cost.lookahead_ns(8, 4) == 4 * US


def test_parts_of_an_expert_that_is_bound_by_products() -> None:
    """1,000 tokens: 60 MFLOP, at 0.02 TFLOP/s 3 ms on the CPU, and 1 us in any case."""
    physics = Physics(small_machine(), small_model())
    assert physics.expert_ns(CPU, 1000) == 3001 * US
    assert physics.expert_ns(CPU, 1000, parts=250) == 751 * US
    assert physics.expert_ns(CPU, 1000, parts=1) == 4 * US


def test_dense_blocks_of_many_tokens_are_bound_by_products() -> None:
    """Shared experts of 15,000 parameters and a head of 100,000, at 1 TFLOP/s; 2 us more each."""
    physics = Physics(small_machine(), small_model())
    assert physics.shared_ns(GPU, 1000) == 32 * US
    assert physics.head_ns(1000) == 202 * US


def test_a_model_without_shared_experts_does_not_pay_for_them() -> None:
    model = replace(small_model(), shared_intermediate=0)
    assert Physics(small_machine(), model).shared_ns(GPU, 8) == 0


class _Noting:
    """A body and a brain that note what is asked of them, in order."""

    def __init__(self, wanted: int | None = None, prefetches: bool = True) -> None:
        self.heard: list[object] = []
        self.prefetches = prefetches
        self.can_forecast, self.wanted = wanted is not None, wanted or 0

    def route(self, layer: int) -> LayerRouting:
        self.heard.append(("route", layer))
        return routing_of(layer, [[layer]])

    def view(self, layer: int) -> View:
        self.heard.append(("view", layer))
        return machine_with().view(layer)

    def start(self, plan: LayerPlan) -> None:
        self.heard.append(("start", plan.layer))

    def offer(self, background: tuple[Move, ...]) -> None:
        self.heard.append(("offer", background))

    def wait(self) -> LayerReport:
        return LayerReport(9, 0, MOVE_NS, 1, 1, 0)

    def finish(self) -> StepReport:
        return StepReport(0, 7, 1, ())

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan:
        return LayerPlan(routing.layer, {})

    def wants_forecasts(self) -> int:
        return self.wanted

    def forecasts(self, depth: int) -> tuple[Forecast, ...]:
        one = Forecast(1, np.array([[0]]), np.ones((1, 1), dtype=np.float32))
        return (one,) * depth

    def look_ahead(self, forecasts: Sequence[Forecast] = ()) -> tuple[Move, ...]:
        return (Move(2, len(forecasts)),)

    def learn(self, routing: LayerRouting, report: LayerReport) -> None:
        self.heard.append(("learn", routing.layer, report.layer))


@pytest.mark.parametrize(("wanted", "made"), [(None, 0), (0, 0), (2, 2)])
def test_the_loop_makes_its_calls_in_order_for_every_layer(wanted: int | None, made: int) -> None:
    """The look-ahead gets as many forecasts as it wants, of a body that can make them."""
    noting = _Noting(wanted)
    assert run_layers(noting, noting, 2) == StepReport(0, 7, 1, ())
    layers = [
        [("route", at), ("view", at), ("start", at), ("offer", (Move(2, made),)), ("learn", at, 9)]
        for at in range(2)
    ]
    assert noting.heard == layers[0] + layers[1]


def test_a_body_that_does_not_prefetch_is_offered_nothing() -> None:
    noting = _Noting(wanted=2, prefetches=False)
    run_layers(noting, noting, 2)
    assert noting.heard.count(("offer", ())) == 2
    assert not any(heard == ("offer", (Move(2, 2),)) for heard in noting.heard)
