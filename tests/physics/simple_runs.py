"""One layer on the simulated machine, with a plan written by hand."""

from __future__ import annotations

from collections.abc import Sequence

from made_up import StatedPhysics, routing_of_loads, small_model, stated_physics
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.offloading import CPU, GPU
from moesaic.core.report import LayerReport, Span, Timeline
from moesaic.core.routing import ExpertId
from moesaic.core.step import Step
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.planning_cost import PlanningCost

# A GPU expert takes 10, a CPU expert 50 per token and 7 more for the first, a transfer 100.
GPU_NS, CPU_NS, FIRST_NS, MOVE_NS = 10, 50, 7, 100


def plain_physics(attention: int = 0, shared: int = 0, gpu_ns: int = GPU_NS) -> StatedPhysics:
    return stated_physics(
        gpu=lambda t: gpu_ns,
        cpu=lambda t: CPU_NS * t,
        first=FIRST_NS,
        transfer=MOVE_NS,
        attention=attention,
        shared=shared,
        model=small_model(3, 12, 2),
    )


def machine_with(
    resident: Sequence[tuple[int, int]] = (),
    slots: int = 24,
    physics: StatedPhysics | None = None,
) -> SimMachine:
    machine = SimMachine(plain_physics() if physics is None else physics, slots, Timeline())
    machine.memory.place([ExpertId(*at) for at in resident])
    return machine


def begin(machine: SimMachine, loads: Sequence[Sequence[int]]) -> None:
    """A step in which layer l routes `loads[l][e]` tokens to expert e."""
    routings = [routing_of_loads(layer, row) for layer, row in enumerate(loads)]
    machine.begin(Step.decode(1), lambda layer: routings[layer])


def run_layer(
    machine: SimMachine,
    gpu: tuple[int, ...] = (),
    cpu: tuple[int, ...] = (),
    transfers: tuple[Move, ...] = (),
    background: tuple[Move, ...] = (),
    layer: int = 0,
    planning_ns: int = 0,
) -> LayerReport:
    machine.route(layer)
    plan = LayerPlan(layer, {GPU: gpu, CPU: cpu}, transfers, background)
    machine.planning = PlanningCost.constant(planning_ns)
    return machine.run(plan)


def time_of(machine: SimMachine, loads: Sequence[int], **plan: tuple[int, ...]) -> int:
    """How long one layer takes whose experts are already where they are computed."""
    begin(machine, [loads])
    report = run_layer(machine, plan.get("gpu", ()), plan.get("cpu", ()))
    return report.end_ns - report.start_ns


def spans(machine: SimMachine, kind: str) -> list[Span]:
    return [span for span in machine.timeline.spans if span.kind == kind]
