"""Later layers as a brain forecasts them: forecasts of several tokens and layers, and predictions
where the body has none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from made_up import exact_belief, make_brain, routing_of, small_model, stated_physics, view_of
from moesaic.core.layer_plan import Move
from moesaic.core.routing import ExpertId, Forecast
from moesaic.policies.brain import Brain

MODEL = small_model(layers=3, experts=6, top_k=2)


def _brain(prefetch: str, slots: int) -> Brain:
    """A GPU expert takes 10, a CPU expert 400, a transfer 100."""
    physics = stated_physics(lambda t: 10, lambda t: 400, transfer=100, model=MODEL)
    belief = exact_belief(physics)
    return make_brain(
        MODEL, belief, slots, "static-experts", "lfu", prefetch, promote=False, checked=True
    )


def _forecast(layer: int, rows: Sequence[Sequence[int]]) -> Forecast:
    ranked = np.array(rows)
    return Forecast(layer, ranked, np.full(ranked.shape, 0.5, dtype=np.float32))


@pytest.mark.parametrize("distance", [1, 2])
def test_all_tokens_of_a_forecast_protect_their_experts(distance: int) -> None:
    """Three tokens with two experts each. 1 is worth nothing and named by the last token only; 0
    is worth something and in no forecast, so it is evicted."""
    brain = _brain("impact:lookahead=2", slots=6)
    brain.cache.values[distance] = [5, 0, 0, 0, 0, 0]
    named = _forecast(distance, [[3, 4], [3, 4], [3, 1]])
    settled = _forecast(1, [[2, 5]] * 3)  # and nothing is missing there
    forecasts = (named,) if distance == 1 else (settled, named)
    there = [(distance, 0), (distance, 1)] + ([(1, 2), (1, 5)] if distance == 2 else [])
    routing = routing_of(0, [[0, 1], [0, 1], [0, 1]], forecasts=forecasts)
    plan = brain.plan(routing, view_of(there, 6))
    assert plan.background == (Move(distance, 3, ExpertId(distance, 0)),)


@pytest.mark.parametrize("prefetch", ["next-layer", "impact:lookahead=1"])
def test_where_the_body_has_no_forecasts_predictions_are_used(prefetch: str) -> None:
    """Layer 1 follows layer 0: 0, 1 there means 2, 3 here, and 4, 5 means 0, 1."""
    brain, view = _brain(prefetch, slots=18), view_of([], 18)
    follows = {(0, 1): [2, 3], (4, 5): [0, 1]}
    for before, after in list(follows.items()) * 15:
        brain.plan(routing_of(0, [list(before)]), view)
        brain.plan(routing_of(1, [after]), view)
    for before, after in follows.items():
        plan = brain.plan(routing_of(0, [list(before)]), view)
        assert sorted((m.layer, m.expert) for m in plan.background) == [(1, e) for e in after]
        assert brain.forecast_accuracy[0] > 0.5


def test_loads_count_over_all_tokens_of_a_later_layer() -> None:
    """Layer 3 of four: five experts, of which 3 has two tokens (the last token's too) and goes
    first; the others are alike and follow by order. Layer 2 has all it needs."""
    model = small_model(layers=4, experts=6, top_k=2)
    physics = stated_physics(lambda t: 10, lambda t: 400 * t, transfer=100, model=model)
    brain = make_brain(
        model,
        exact_belief(physics),
        24,
        "static-experts",
        "lfu",
        "impact:lookahead=2",
        promote=False,
    )
    forecasts = (_forecast(2, [[2, 5]] * 3), _forecast(3, [[0, 1], [2, 3], [4, 3]]))
    routing = routing_of(1, [[0, 1], [0, 1], [0, 1]], forecasts=forecasts)
    plan = brain.plan(routing, view_of([(2, 2), (2, 5)], 24, layers=4))
    assert [(m.layer, m.expert) for m in plan.background] == [(3, 3), (3, 0), (3, 1), (3, 2)]


@pytest.mark.parametrize("prefetch", ["next-layer", "impact:lookahead=1"])
def test_after_the_last_layer_nothing_is_prefetched(prefetch: str) -> None:
    """What was forecast for it before is over."""
    brain, view = _brain(prefetch, slots=18), view_of([], 18)
    forecast = _forecast(2, [[4, 5]])
    assert brain.plan(routing_of(1, [[0, 1]], forecasts=(forecast,)), view).background
    assert brain.plan(routing_of(2, [[0, 1]]), view).background == ()
