"""Are slots given out as the rule says? Compared with a slow account that follows the rule word by
word, over random memories, shields and newcomers: own shares and one pool, ties, full layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from brain_parts import Slots
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.routing import ExpertId, Forecast, LayerRouting
from moesaic.core.view import Flight, View, offloading_view
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import assemble, workload
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.brain import Brain
from moesaic.policies.policy_set import PolicySet
from moesaic.workloads.steps import popularity


class Case(NamedTuple):
    view: View
    values: list[list[float]]
    per_layer: bool
    shielded: list[ExpertId]
    newcomers: list[tuple[ExpertId, float]]  # with what each is worth


@st.composite
def cases(draw: st.DrawFn) -> Case:
    layers, experts = draw(st.integers(1, 3)), draw(st.integers(2, 5))
    everything = [ExpertId(layer, e) for layer in range(layers) for e in range(experts)]
    order = draw(st.permutations(everything))
    there = draw(st.integers(0, len(order) - 1))
    coming = draw(st.integers(0, min(2, len(order) - there)))
    resident, flying = order[:there], order[there : there + coming]
    slots = draw(st.integers(there + coming, len(order)))
    table = np.zeros((layers, experts), dtype=np.uint8)
    for at in resident:
        table[at] = 1
    flights = tuple(Flight(*at, 10) for at in flying)
    few = st.sampled_from([0.0, 1.0, 2.0, 3.0])  # few values: ties matter
    values = [[draw(few) for _ in range(experts)] for _ in range(layers)]
    shielded = [at for at in resident if draw(st.integers(0, 3)) == 0]
    newcomers = [(at, draw(few)) for at in order[there + coming :]]
    view = offloading_view(table, slots, flights)
    return Case(view, values, draw(st.booleans()), shielded, newcomers)


class NaiveSlots:
    """The rule in words: a free slot of one's own share or of the pool, else that of the cheapest
    resident that may go and is worth less, the first of equals."""

    def __init__(self, case: Case) -> None:
        view, self.case = case.view, case
        self.layers = len(view.resident)
        self.evictable = [ExpertId(*map(int, at)) for at in np.argwhere(view.resident)]
        self.holders = [at.layer for at in self.evictable] + [f.layer for f in view.in_flight]
        self.evictable = [at for at in self.evictable if at not in case.shielded]

    def admit(self, newcomer: ExpertId, worth: float) -> ExpertId | str | None:
        slots, candidates = self.case.view.slots, self.evictable
        free = len(self.holders) < slots
        if self.case.per_layer:
            share = slots // self.layers + (newcomer.layer < slots % self.layers)
            free = free and self.holders.count(newcomer.layer) < share
            candidates = [at for at in candidates if at.layer == newcomer.layer]
        if free:
            self.holders.append(newcomer.layer)
            return "free"
        victim = min(candidates, key=self._value, default=None)
        if victim is None or self._value(victim) >= worth:
            return None
        self.evictable.remove(victim)
        self.holders.remove(victim.layer)
        self.holders.append(newcomer.layer)
        return victim

    def _value(self, at: ExpertId) -> float:
        return self.case.values[at.layer][at.expert]


@settings(max_examples=300)
@given(cases())
def test_slots_are_given_out_as_the_rule_says(case: Case) -> None:
    compiled, naive = Slots(case.view, case.values, case.per_layer), NaiveSlots(case)
    for at in case.shielded:
        compiled.shield(*at)
    for newcomer, worth in case.newcomers:
        assert compiled.admit(*newcomer, worth) == naive.admit(newcomer, worth), newcomer


# Victims that are kept from plan to plan are those that looking at every expert finds.


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
