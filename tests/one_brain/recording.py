"""A brain that records its inputs and plans, and one that replays them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from closed_loop import assembled, play
from made_up import RandomStep
from moesaic.core.body import Decider
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.report import LayerReport
from moesaic.core.routing import Forecast, LayerRouting
from moesaic.core.view import View
from moesaic.machines.sim.physics import Physics
from moesaic.policies.brain import Brain
from moesaic.policies.policy_set import PolicySet


@dataclass(frozen=True)
class Moment:
    """One layer: routing and view before the plan, the report after it; the routing has the
    forecasts that the body gave."""

    routing: LayerRouting
    view: View
    plan: LayerPlan
    report: LayerReport


class Listener:
    """A brain that passes everything on to another, and writes down what was said. Views are
    copied: a machine's own goes on changing."""

    def __init__(self, brain: Decider) -> None:
        self._brain = brain
        self.moments: list[Moment] = []

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan:
        self._view = view.copy()
        self._plan = self._brain.decide(routing, view)
        return self._plan

    def wants_forecasts(self) -> int:
        return self._brain.wants_forecasts()

    def look_ahead(self, forecasts: Sequence[Forecast] = ()) -> tuple[Move, ...]:
        self._forecasts = tuple(forecasts)
        background = self._brain.look_ahead(forecasts)
        self._plan = self._plan._replace(background=background)
        return background

    def learn(self, routing: LayerRouting, report: LayerReport) -> None:
        given = replace(routing, forecasts=self._forecasts)
        self.moments.append(Moment(given, self._view, self._plan, report))
        self._brain.learn(routing, report)


def recorded_run(
    physics: Physics, slots: int, policies: PolicySet, steps: Sequence[RandomStep]
) -> list[Moment]:
    """What a simulated machine and its brain said to each other."""
    machine, brain = assembled(physics, slots, policies, steps)
    listener = Listener(brain)
    play(machine, listener, steps, planning_ns=900, lookahead_ns=100)
    return listener.moments


def replayed(brain: Brain, moments: Sequence[Moment]) -> list[LayerPlan]:
    """What the brain decides when it is given the same inputs again, without a machine."""
    plans = []
    for moment in moments:
        plans.append(brain.plan(moment.routing, moment.view))
        brain.learn(moment.routing, moment.report)
    return plans
