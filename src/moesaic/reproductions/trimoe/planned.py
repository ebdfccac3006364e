"""What the plans of a simulated run are expected to take: the makespan of each by equations 5 to 7,
under the costs that the schedule believes."""

from __future__ import annotations

from typing import Any

import numpy as np

from moesaic.core.layer_plan import LayerPlan
from moesaic.core.report import Timeline
from moesaic.core.view import View
from moesaic.lab.simulate.simulation import assemble
from moesaic.policies.brain import Brain
from moesaic.reproductions.trimoe.runs import WARMUP, Outcome, Run, routed
from moesaic.reproductions.trimoe.simulated import settings_of, step_of


class NotingBrain:
    """A brain whose plans' expected times are kept."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        self.believed_ns: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._brain, name)

    def decide(self, routing: Any, view: View) -> LayerPlan:
        plan = self._brain.decide(routing, view)
        self.believed_ns.append(plan.believed_ns)
        return plan


def planned(run: Run) -> Outcome:
    profile, played = routed(run.work)
    machine, brain = assemble(settings_of(run), profile.sum(axis=0), (), Timeline(enabled=False))
    noting: Any = NotingBrain(brain)
    for number, choices in enumerate(played):
        if number == WARMUP:
            noting.believed_ns.clear()
        machine.step(step_of(choices), noting)
    return Outcome(layer_ms=float(np.mean(noting.believed_ns)) / 1e6, window_ms=0.0)
