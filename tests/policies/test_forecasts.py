"""Are forecasts as good as they can be, and is their accuracy known?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from brain_parts import Forecasting

from made_up import (
    exact_belief,
    make_brain,
    routing_of,
    small_model,
    stated_physics,
    view_of,
)
from moesaic.core.layer_plan import Move
from moesaic.core.routing import ExpertId, Forecast, LayerRouting
from moesaic.core.view import Flight
from moesaic.policies.brain import Brain


def test_a_fixed_mapping_between_layers_is_learned() -> None:
    """Layer l + 1 chooses (e + 1) mod 6 wherever layer l chose e."""
    predictor = Forecasting(layers=3, experts=6, top_k=1, ahead=2)
    rng = np.random.default_rng(0)
    for _ in range(60):
        start = int(rng.integers(6))
        for layer in range(3):
            predictor.observe(routing_of(layer, [[(start + layer) % 6]]))
    for start in range(6):
        near, far = predictor.forecast(routing_of(0, [[start]]))
        assert (near.layer, far.layer) == (1, 2)
        assert near.ranked[0, 0] == (start + 1) % 6
        assert far.ranked[0, 0] == (start + 2) % 6


def test_tokens_of_a_batch_are_distinguished() -> None:
    predictor = Forecasting(layers=2, experts=4, top_k=1, ahead=1)
    for _ in range(20):
        predictor.observe(routing_of(0, [[0], [1]]))
        predictor.observe(routing_of(1, [[3], [2]]))
    (ahead,) = predictor.forecast(routing_of(0, [[1], [0]]))
    assert ahead.ranked[:, 0].tolist() == [2, 3]


def test_forecasts_end_with_the_model() -> None:
    predictor = Forecasting(layers=3, experts=4, top_k=2, ahead=3)
    assert [len(predictor.forecast(routing_of(at, [[0, 1]]))) for at in range(3)] == [2, 1, 0]


def test_scores_of_a_prediction_fall_with_rank_and_are_probabilities() -> None:
    predictor = Forecasting(layers=2, experts=5, top_k=3, ahead=1)
    rng = np.random.default_rng(1)
    for _ in range(30):
        for layer in range(2):
            predictor.observe(routing_of(layer, [rng.permutation(5)[:3].tolist()]))
    (ahead,) = predictor.forecast(routing_of(0, [[0, 1, 2]]))
    assert len(set(ahead.ranked[0].tolist())) == 3
    assert (np.diff(ahead.scores[0]) <= 0).all()
    assert 0 < ahead.scores.sum() <= 1 + 1e-6


@pytest.mark.parametrize("right", [0, 1, 2])
def test_trust_converges_to_the_share_of_right_predictions(right: int) -> None:
    """Of the two experts forecast for the next layer, `right` are chosen."""
    forecasting = Forecasting(layers=2, experts=6, top_k=2, ahead=1)
    forecast_experts = np.array([[0, 1]])
    chosen = [0, 1][:right] + [4, 5][right:]
    forecast = Forecast(1, forecast_experts, np.full((1, 2), 0.5, dtype=np.float32))
    for _ in range(400):
        for layer, row in ((0, [2, 3]), (1, chosen)):
            routing = routing_of(layer, [row], forecasts=(forecast,) if layer == 0 else ())
            forecasting.observe(routing)
            forecasting.forecast(routing)
    assert forecasting.trust[0] == pytest.approx(right / 2, abs=0.01)


def test_trust_is_kept_per_distance() -> None:
    """One layer ahead always right, two layers ahead never."""
    forecasting = Forecasting(layers=3, experts=6, top_k=1, ahead=2)
    even = np.full((1, 1), 1.0, dtype=np.float32)
    near, far = Forecast(1, np.array([[1]]), even), Forecast(2, np.array([[5]]), even)
    nearest = Forecast(2, np.array([[2]]), even)
    for _ in range(400):
        for layer, forecasts in enumerate(((near, far), (nearest,), ())):
            routing = routing_of(layer, [[layer]], forecasts=forecasts)
            forecasting.observe(routing)
            forecasting.forecast(routing)
    assert list(forecasting.trust) == pytest.approx([1.0, 0.0], abs=0.01)


def test_the_gates_own_forecasts_are_used_where_routing_has_them() -> None:
    """Cut to the look-ahead and to top-k, scores included."""
    forecasting = Forecasting(layers=4, experts=6, top_k=2, ahead=2)
    forecasts = tuple(
        Forecast(at, np.array([[at, 0, 5]]), np.array([[0.6, 0.3, 0.1]], dtype=np.float32))
        for at in (1, 2, 3)
    )
    routing = routing_of(0, [[0, 1]], forecasts=forecasts)
    forecasting.observe(routing)
    ahead = forecasting.forecast(routing)
    assert [f.layer for f in ahead] == [1, 2]
    assert [f.ranked.tolist() for f in ahead] == [[[1, 0]], [[2, 0]]]
    assert [f.scores.shape for f in ahead] == [(1, 2), (1, 2)]


@pytest.mark.parametrize("prefetch", ["next-layer", "impact"])
def test_forecasts_longer_than_top_k_are_planned_with(prefetch: str) -> None:
    model = small_model(layers=3, experts=6, top_k=2)
    physics = stated_physics(lambda t: 1, lambda t: 50 * t, transfer=20)
    brain = make_brain(model, exact_belief(physics), slots=9, prefetch=prefetch)
    forecast = Forecast(1, np.array([[4, 3, 5]]), np.array([[0.6, 0.3, 0.1]], dtype=np.float32))
    routing = routing_of(0, [[0, 1]], forecasts=(forecast,))
    plan = brain.plan(routing, view_of([(0, 0), (0, 1)], 9))
    assert [(t.layer, t.expert) for t in plan.background][:1] == [(1, 4)]


def test_without_look_ahead_nothing_is_learned() -> None:
    forecasting = Forecasting(layers=2, experts=4, top_k=1, ahead=0)
    forecasting.observe(routing_of(0, [[0]]))
    assert forecasting.trust == []


def test_a_forecast_is_judged_only_in_the_pass_it_speaks_about() -> None:
    """A pass that ends early leaves forecasts behind; the next pass is not judged by them."""
    forecasting = Forecasting(layers=3, experts=6, top_k=1, ahead=1)
    certain = np.full((1, 1), 1.0, dtype=np.float32)
    routing = routing_of(0, [[0]], forecasts=(Forecast(1, np.array([[5]]), certain),))
    forecasting.observe(routing)
    forecasting.forecast(routing)
    forecasting.observe(routing_of(0, [[0]]))  # the next pass
    forecasting.observe(routing_of(1, [[1]]))
    assert forecasting.trust == [1.0]


def test_a_forecast_may_speak_about_the_next_pass() -> None:
    """The last layer of pass 1 forecasts the first of pass 2, wrongly: that is counted there."""
    forecasting = Forecasting(layers=2, experts=6, top_k=1, ahead=1)
    certain = np.full((1, 1), 1.0, dtype=np.float32)
    forecasting.observe(routing_of(0, [[0]]))
    last = routing_of(1, [[1]], forecasts=(Forecast(0, np.array([[5]]), certain, step=2),))
    forecasting.observe(last)
    forecasting.forecast(last)
    forecasting.observe(routing_of(0, [[0]]))
    assert forecasting.trust[0] < 1.0


# Forecasts that a body fills in: are they about the pass and the layer they name?

MODEL = small_model(layers=3, experts=6, top_k=2)
RESIDENT = [(layer, expert) for layer in range(3) for expert in (0, 1)]
SURE = np.array([[0.6, 0.4]], dtype=np.float32)


def brain_with(prefetch: str = "impact") -> Brain:
    """Transfers are quick and the CPU is slow: whatever is forecast is worth moving."""
    physics = stated_physics(lambda t: 1, lambda t: 50 * t, transfer=20)
    return make_brain(MODEL, exact_belief(physics), slots=9, prefetch=prefetch)


def forecast(step: int, layer: int, *experts: int) -> Forecast:
    return Forecast(layer, np.array([experts]), SURE, step)


def decided(brain: Brain, step: int, layer: int) -> LayerRouting:
    """The chosen experts are there, so the link has time."""
    routing = routing_of(layer, [[0, 1]]).at_step(step)
    brain.decide(routing, view_of(RESIDENT, 9))
    return routing


def moved(brain: Brain, *forecasts: Forecast) -> set[tuple[int, int]]:
    return {(move.layer, move.expert) for move in brain.look_ahead(forecasts)}


@pytest.mark.parametrize("prefetch", ["next-layer", "impact"])
def test_the_last_layer_of_a_pass_may_forecast_the_first_of_the_next(prefetch: str) -> None:
    brain = brain_with(prefetch)
    decided(brain, step=4, layer=2)
    assert brain.wants_forecasts()
    assert (0, 5) in moved(brain, forecast(5, 0, 5, 4))


@pytest.mark.parametrize(("step", "layer"), [(4, 0), (4, 2), (3, 2), (6, 0), (0, 1)])
def test_a_forecast_that_is_not_about_the_next_layers_moves_nothing(step: int, layer: int) -> None:
    """From layer 2 of pass 4 on, three layers ahead is the whole of pass 5."""
    brain = brain_with()
    decided(brain, step=4, layer=2)
    assert not moved(brain, forecast(step, layer, 5, 4))


def test_a_forecast_counts_as_much_as_those_at_its_distance_were_right() -> None:
    """What is two layers away has been forecast wrongly so far, what is next rightly: an only
    forecast is valued by how far away it is."""
    brain = brain_with()
    for step in range(200):
        decided(brain, step, 0)
        moved(brain, forecast(step, 1, 0, 1), forecast(step, 2, 2, 3))
        for layer in (1, 2):
            decided(brain, step, layer)
            moved(brain)
    assert brain.trust[0] > 0.9
    assert brain.trust[1] < 0.1
    decided(brain, 200, 0)
    assert not moved(brain, forecast(200, 2, 5, 4))
    decided(brain, 201, 0)
    assert moved(brain, forecast(201, 1, 5, 4))


def test_a_pass_is_judged_by_its_number_not_by_its_turn() -> None:
    """Pass 8 comes after pass 4: what was forecast for pass 5 is not held against it."""
    brain = brain_with()
    decided(brain, step=4, layer=2)
    moved(brain, forecast(5, 0, 5, 4))
    decided(brain, step=8, layer=0)
    moved(brain)
    assert brain.forecast_accuracy == ()
    decided(brain, step=8, layer=2)
    moved(brain, forecast(9, 0, 5, 4))
    decided(brain, step=9, layer=0)
    moved(brain)
    assert brain.trust[0] < 1.0


def test_forecasts_are_not_wanted_where_nothing_can_move() -> None:
    assert not brain_with().wants_forecasts(), "nothing was decided"
    for prefetch, wanted in (("none", 0), ("next-layer", 1), ("impact:lookahead=2", 2)):
        brain = brain_with(prefetch)
        decided(brain, 0, 0)
        assert brain.wants_forecasts() == wanted
    brain = brain_with()
    busy = view_of(RESIDENT, 9, flight=Flight(1, 5, remaining_ns=500))  # longer than the layer runs
    brain.decide(routing_of(0, [[0, 1]]), busy)
    assert brain.wants_forecasts() == 0


# Later layers as a brain forecasts them: forecasts of several tokens and layers, and predictions
# where the body has none.


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
