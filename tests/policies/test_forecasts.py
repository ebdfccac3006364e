"""Are forecasts as good as they can be, and is their accuracy known?"""

from __future__ import annotations

import numpy as np
import pytest
from brain_parts import Forecasting

from made_up import exact_belief, make_brain, routing_of, small_model, stated_physics, view_of
from moesaic.core.routing import Forecast


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
