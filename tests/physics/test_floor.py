"""Is the floor a floor? No schedule, cache or prefetch may be faster than it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from closed_loop import assembled, chosen, play
from made_up import (
    every_nth,
    policy_combinations,
    random_steps,
    routing_of,
    small_machine,
    small_model,
    values_first,
)
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.offloading import GPU
from moesaic.core.report import LayerReport, StepReport
from moesaic.core.routing import ExpertId
from moesaic.core.step import Step
from moesaic.core.units import NS_PER_S
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.lab.simulate.floor import Floor
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics

MODEL = small_model(layers=3, experts=6, top_k=2, dense=1)
ROUNDING_S = 1e-7  # costs are whole nanoseconds, some fifty a step


def frictionless(link_gb_s: float = 2.0) -> MachineSpec:
    """No fixed costs: as near to the floor as a machine can be."""
    machine = small_machine()
    return replace(
        machine,
        gpu=replace(machine.gpu, expert_overhead_us=0.0, layer_overhead_us=0.0),
        cpu=replace(machine.cpu, expert_overhead_us=0.0, first_expert_us=0.0),
        pcie=replace(machine.pcie, latency_us=0.0, bandwidth_gb_s=link_gb_s),
    )


DECODED_AND_MORE = [
    (*names, tokens)
    for part, tokens in enumerate((1, 16, 16))  # every policy with either
    for names in every_nth(policy_combinations(), part, 3)
]


@pytest.mark.parametrize(
    ("schedule", "cache", "prefetch", "tokens"), values_first(DECODED_AND_MORE)
)
def test_no_run_is_faster_than_its_floor(
    schedule: str, cache: str, prefetch: str, tokens: int
) -> None:
    for machine_spec in (frictionless(), frictionless(link_gb_s=40.0)):
        physics = Physics(machine_spec, MODEL)
        steps = random_steps(7, 4, MODEL, tokens)
        machine, brain = assembled(physics, 9, chosen(schedule, cache, prefetch), steps)
        floor = Floor(physics)
        for step, report in zip(steps, play(machine, brain, steps), strict=True):
            measured = report.latency_ns / NS_PER_S
            assert floor.step_s(step.step, report) <= measured + ROUNDING_S


def test_what_is_nearly_there_need_not_be_read_again() -> None:
    """Layer 0 hits; meanwhile, and during attention, the expert of layer 1 comes. It is under way
    when that layer is planned: no hit, but hardly any of its bytes are still missing."""
    model = small_model(layers=2, experts=6, top_k=1)
    physics = Physics(frictionless(link_gb_s=23.5), model)
    machine = SimMachine(physics, slots=2)
    machine.memory.place([ExpertId(0, 0)])
    step = Step.decode(1)
    machine.begin(step, lambda layer: routing_of(layer, [[0]]))
    machine.route(0)
    machine.run(LayerPlan(0, {GPU: (0,)}, (), (Move(1, 0),)))
    machine.route(1)
    (flight,) = machine.view(1).in_flight
    assert 0 < flight.remaining_ns < 100
    machine.run(LayerPlan(1, {GPU: (0,)}))
    report = machine.finish()
    assert Floor(physics).step_s(step, report) <= report.latency_ns / NS_PER_S + ROUNDING_S


@pytest.mark.parametrize(
    ("active", "hits", "coming", "layer_us"),
    [
        (4, 0, 0, 4 * 60 / (6 + 2)),  # all missing: CPU and link share them
        (4, 0, 1, 3 * 60 / (6 + 2)),  # one of them was under way
        (4, 4, 0, (4 * 60 + 30) / (6 + 60)),  # all there: CPU and GPU share the reading
        (4, 3, 0, 60 / (6 + 2)),  # one missing weighs more than reading all
    ],
)
def test_a_layers_floor_by_hand(active: int, hits: int, coming: int, layer_us: float) -> None:
    """Experts of 60 kB, shared ones of 30 kB; CPU 6, link 2, GPU 60 GB/s. Attention reads 61.4 kB
    and the head 200 kB on the GPU."""
    model = small_model(layers=1)
    floor = Floor(Physics(frictionless(), model))
    layer = LayerReport(0, 0, 0, active, hits, 0, coming)
    found = floor.step_s(Step.decode(1), StepReport(0, 0, 1, (layer,)))
    dense_us = (61.4 + 200) / 60
    assert found * 1e6 == pytest.approx(layer_us + dense_us)


def test_the_floor_of_a_large_batch_is_bound_by_products() -> None:
    """1,000 tokens with two experts each: 120 MFLOP at 1.02 TFLOP/s; attention 61.2 MFLOP and the
    head of one sequence 0.2 MFLOP at 1 TFLOP/s."""
    floor = Floor(Physics(frictionless(), small_model(layers=1)))
    layer = LayerReport(0, 0, 0, 6, 6, 0)
    found = floor.step_s(Step.prompt(1000), StepReport(0, 0, 1000, (layer,)))
    assert found * 1e6 == pytest.approx(120 / 1.02 + 61.2 + 0.2)
