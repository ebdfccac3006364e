"""Victims that are kept from plan to plan are those that looking at every expert finds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.routing import Forecast, LayerRouting
from moesaic.core.view import View
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import assemble, workload
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.brain import Brain
from moesaic.policies.policy_set import PolicySet
from moesaic.workloads.steps import popularity


class Recorder:
    """A brain whose plans are recorded; `forgetful`: it looks at every expert in every plan."""

    def __init__(self, brain: Brain, forgetful: bool) -> None:
        self._brain, self._forgetful = brain, forgetful
        self.learn, self.wants_forecasts = brain.learn, brain.wants_forecasts
        self.decided: list[tuple[LayerPlan, tuple[Move, ...]]] = []

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan:
        if self._forgetful:
            self._brain.state.slots.kept_victims[...] = 0
        self._plan = self._brain.decide(routing, view)
        return self._plan

    def look_ahead(self, forecasts: Sequence[Forecast] = ()) -> tuple[Move, ...]:
        moves = self._brain.look_ahead(forecasts)
        self.decided.append((self._plan, moves))
        return moves


@pytest.mark.parametrize(
    "cache", ["learned-speed", "learned-mixture", "lru", "mrs:alpha=0.3,admission=always"]
)
def test_plans_are_those_of_a_brain_that_forgets(cache: str) -> None:
    settings = Settings(
        load_model("moesaic-20m"),
        load_machine("h200-emr16"),
        policies=PolicySet.of(cache=f"{cache}{',' if ':' in cache else ':'}pool=global"),
        tokens=48,
        warmup=8,
        cache_ratio=0.4,
    )
    decided = []
    for forgetful in (False, True):
        source = choose_workload(None, settings).source
        body, brain = assemble(settings, popularity(source, 4), (), None)
        recorder = Recorder(brain, forgetful)
        for routed in workload(settings, source):
            body.step(routed, recorder)
        decided.append(recorder.decided)
    kept, found = decided
    moves = [move for plan, background in kept for move in (*plan.transfers, *background)]
    assert sum(move.victim is not None for move in moves) > 50, "or nothing is shown"
    assert kept == found
