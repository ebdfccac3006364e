"""Forecasts that a body fills in: are they about the pass and the layer they name?"""

from __future__ import annotations

import numpy as np
import pytest

from made_up import (
    exact_belief,
    make_brain,
    routing_of,
    small_model,
    stated_physics,
    view_of,
)
from moesaic.core.routing import Forecast, LayerRouting
from moesaic.core.view import Flight
from moesaic.policies.brain import Brain

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
