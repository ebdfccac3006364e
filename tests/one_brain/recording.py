"""A body that writes down what the brain was told and what it answered, and one that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from closed_loop import assembled
from invented import RandomStep
from moesaic.core.layer_plan import LayerPlan
from moesaic.core.report import LayerReport
from moesaic.core.routing import LayerRouting
from moesaic.core.view import View
from moesaic.machines.sim.physics import Physics
from moesaic.policies.brain import Brain
from moesaic.policies.policy_set import PolicySet


@dataclass(frozen=True)
class Moment:
    """One layer: routing and view before the plan, the report after it."""

    routing: LayerRouting
    view: View
    plan: LayerPlan
    report: LayerReport


def recorded_run(
    physics: Physics, slots: int, policies: PolicySet, steps: Sequence[RandomStep]
) -> list[Moment]:
    """The loop, step by step, with a copy of every view: the machine's own goes on changing."""
    machine, brain = assembled(physics, slots, policies, steps)
    moments = []
    for step in steps:
        machine.begin(step.step, step.layer)
        for layer in range(physics.model.num_moe_layers):
            routing = machine.route(layer)
            seen = machine.view(layer)
            view = seen.copy()
            plan = brain.decide(routing, seen)
            machine.start(plan, planning_ns=900)  # as in the loop: the look-ahead comes after
            background = brain.look_ahead()
            machine.offer(background, lookahead_ns=100)
            report = machine.wait()
            brain.learn(routing, report)
            moments.append(Moment(routing, view, plan._replace(background=background), report))
        machine.finish()
    return moments


def replayed(brain: Brain, moments: Sequence[Moment]) -> list[LayerPlan]:
    """What the brain decides when it is told the same again, by nobody in particular."""
    plans = []
    for moment in moments:
        plans.append(brain.plan(moment.routing, moment.view))
        brain.learn(moment.routing, moment.report)
    return plans
