"""Whole runs of the loop on invented machines, small enough for any combination of policies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from made_up import RandomStep, future_of
from moesaic.core.body import Decider
from moesaic.core.report import StepReport, Timeline
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.machines.sim.planning_cost import PlanningCost
from moesaic.policies.belief import warm_up
from moesaic.policies.brain import Brain
from moesaic.policies.compose import Composition
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.shape import Shape


def chosen(schedule: str = "hybrid", cache: str = "mrs", prefetch: str = "impact") -> PolicySet:
    return PolicySet.of(schedule=schedule, cache=cache, prefetch=prefetch)


def assembled(
    physics: Physics, slots: int, policies: PolicySet, steps: Sequence[RandomStep]
) -> tuple[SimMachine, Brain]:
    """A machine filled as the schedule wants, and a brain that has measured it."""
    model = physics.model
    layers = range(model.num_moe_layers)
    counts = np.stack([steps[0].layer(at).loads(model.num_experts) for at in layers])
    shape = Shape(model.num_moe_layers, model.num_experts, model.top_k)
    composition = Composition(policies, shape, slots, checked=True)
    placed = composition.placement(counts)
    machine = SimMachine(physics, slots, Timeline(), composition.dense_on(placed))
    machine.memory.place(placed)
    belief = warm_up(machine, steps[0].step.tokens)
    return machine, composition.brain(belief, future_of(steps, model))


def play(
    machine: SimMachine,
    brain: Decider,
    steps: Sequence[RandomStep],
    planning_ns: int = 0,
    lookahead_ns: int = 0,
) -> list[StepReport]:
    machine.planning = PlanningCost.constant(planning_ns, lookahead_ns)
    return [machine.step(step, brain) for step in steps]
