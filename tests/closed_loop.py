"""Whole runs of the loop on invented machines, small enough for any combination of policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from invented import RandomStep, future_of, make_brain
from moesaic.core.offloading import CPU, GPU
from moesaic.core.report import StepReport, Timeline
from moesaic.machines.loop import PlanningCost, forward
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.policies.belief import warm_up
from moesaic.policies.brain import Brain
from moesaic.policies.placement import initial_placement
from moesaic.policies.schedule import schedules


@dataclass(frozen=True)
class Policies:
    schedule: str = "hybrid"
    cache: str = "mrs"
    prefetch: str = "impact"
    per_layer: bool = True
    promote: bool = True


def assembled(
    physics: Physics, slots: int, policies: Policies, steps: Sequence[RandomStep]
) -> tuple[SimMachine, Brain]:
    """A machine filled as the schedule wants, and a brain that has measured it."""
    model = physics.model
    schedule = schedules.create(policies.schedule)
    layers = range(model.num_moe_layers)
    counts = np.stack([steps[0].layer(at).loads(model.num_experts) for at in layers])
    placed = initial_placement(schedule.fill, counts, slots, policies.per_layer)
    dense_on = None
    if schedule.dense_follows:
        filled = {e.layer for e in placed}
        dense_on = [GPU if at in filled else CPU for at in layers]
    machine = SimMachine(physics, slots, Timeline(), dense_on)
    machine.memory.place(placed)
    brain = make_brain(
        model,
        warm_up(machine, steps[0].step.tokens),
        slots,
        policies.schedule,
        policies.cache,
        policies.prefetch,
        policies.per_layer,
        policies.promote,
        future_of(steps, model),
    )
    return machine, brain


def play(
    machine: SimMachine,
    brain: Brain,
    steps: Sequence[RandomStep],
    planning_ns: int = 0,
    lookahead_ns: int = 0,
) -> list[StepReport]:
    reports = []
    for step in steps:
        machine.begin(step.step, step.layer)
        layers = machine.physics.model.num_moe_layers
        cost = PlanningCost(lambda *work: planning_ns, lambda *work: lookahead_ns)
        report = forward(machine, brain, layers, cost)
        reports.append(report)
    return reports
