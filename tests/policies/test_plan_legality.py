"""Is every plan legal, whatever the policies and the situation?"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_up import (
    RandomStep,
    exact_belief,
    future_of,
    make_brain,
    policy_combinations,
    random_steps,
    small_model,
    stated_physics,
    view_of,
)
from moesaic.core.legality import check
from moesaic.core.routing import ExpertId, cut
from moesaic.core.view import Flight, View
from moesaic.model_info.model_spec import ModelSpec
from moesaic.policies.belief import Belief
from moesaic.policies.schedule import schedules


class Situation(NamedTuple):
    """Some routed steps, and what the machine looks like at every layer of them."""

    model: ModelSpec
    belief: Belief
    slots: int
    steps: list[RandomStep]
    views: list[View]  # steps x layers


def _random_view(rng: np.random.Generator, model: ModelSpec, slots: int) -> View:
    layers, experts = model.num_moe_layers, model.num_experts
    everything = [ExpertId(*divmod(int(i), experts)) for i in rng.permutation(layers * experts)]
    count = int(rng.integers(0, min(slots, layers * experts) + 1))
    resident, others = everything[:count], everything[count:]
    flight = None
    if others and count < slots and rng.random() < 0.6:
        flight = Flight(*others[0], int(rng.integers(1, 200)))
    return view_of(
        resident, slots, layers, experts, flight, *(int(n) for n in rng.integers(0, 80, 2))
    )


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    layers, experts = draw(st.integers(1, 4)), draw(st.integers(1, 18))
    top_k = draw(st.integers(1, experts))
    model = small_model(layers, experts, top_k)
    slots = draw(st.integers(0, layers * experts))
    tokens = draw(st.sampled_from([1, 1, 2, 5, 17]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    gpu, cpu = (int(n) for n in rng.integers(1, 40, 2))
    physics = stated_physics(
        gpu=lambda t: 10 + gpu * t // 8,
        cpu=lambda t: 20 + cpu * t,
        first=int(rng.integers(0, 50)),
        transfer=int(rng.integers(1, 150)),
        model=model,
    )
    ranks = draw(st.sampled_from([top_k, experts]))
    steps = random_steps(int(rng.integers(1 << 30)), 2, model, tokens, ranks)
    if draw(st.booleans()):
        counts = rng.integers(1, top_k + 1, tokens)
        steps = [RandomStep(tuple(cut(r, counts) for r in step.routings)) for step in steps]
    views = [_random_view(rng, model, slots) for _ in range(len(steps) * layers)]
    return Situation(model, exact_belief(physics), slots, steps, views)


@settings(max_examples=350)
@given(situations(), st.sampled_from(policy_combinations()), st.booleans(), st.booleans())
def test_every_plan_is_legal(
    situation: Situation, policies: tuple[str, str, str], per_layer: bool, promote: bool
) -> None:
    if situation.slots == 0 and schedules.load(policies[0]).needs_slots:
        return
    _check_plans(situation, policies, per_layer, promote)


@given(situations(), st.sampled_from(["lru", "two-speed", "learned-speed"]), st.booleans())
def test_every_plan_is_legal_where_copies_slow_the_cpu_down(
    situation: Situation, cache: str, per_layer: bool
) -> None:
    """Promotions wait for two layers there: in a model of few layers that is this one again, or one
    that is forecast."""
    slowed = situation._replace(belief=replace(situation.belief, cpu_slowed=1))
    _check_plans(slowed, ("best-split", cache, "impact"), per_layer, promote=True)


def _check_plans(
    situation: Situation, policies: tuple[str, str, str], per_layer: bool, promote: bool
) -> None:
    model, belief, slots, steps, views = situation
    future = future_of(steps, model)
    brain = make_brain(model, belief, slots, *policies, per_layer, promote, future, checked=False)
    at = iter(views)
    for step in steps:
        for routing in step.routings:
            view = next(at)
            plan = brain.plan(routing, view)
            check(plan, routing.loads(model.num_experts), view)


@pytest.mark.parametrize("schedule", [s for s in schedules if not schedules.load(s).needs_slots])
def test_nothing_is_moved_without_slots(schedule: str) -> None:
    """Even where a transfer looks cheap, and with more experts than are searched in full."""
    model = small_model(layers=1, experts=24, top_k=20)
    physics = stated_physics(gpu=lambda t: 1, cpu=lambda t: 1000 * t, transfer=1, model=model)
    brain = make_brain(model, exact_belief(physics), slots=0, schedule=schedule)
    for step in random_steps(5, 2, model, tokens=3):
        routing = step.layer(0)
        plan = brain.plan(routing, view_of([], 0, 1, 24))
        assert not plan.transfers
        assert not plan.background
        assert set(plan.queues["cpu"]) == set(np.unique(routing.experts).tolist())
