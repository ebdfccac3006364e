"""Are hit rates of the latest steps those of the caches' own replay?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from moesaic.core.routing import UNUSED, LayerRouting
from moesaic.engine.insight.hit_rates import _last_uses as last_uses
from moesaic.engine.insight.hit_rates import _next_uses as next_uses
from moesaic.engine.insight.hit_rates import hit_facts, replayed
from moesaic.engine.insight.step_log import RoutedStep, use_order
from moesaic.policies.cache import caches
from moesaic.policies.future import Future
from moesaic.policies.hit_rate_replay import replay_hit_rates

LAYERS, EXPERTS, TOP_K = 3, 12, 3


class Step(NamedTuple):
    chosen: NDArray[np.int64]  # [layers, tokens, k]

    def layer(self, layer: int) -> LayerRouting:
        experts = self.chosen[layer]
        weights = np.full(experts.shape, 0.5, dtype=np.float32)
        return LayerRouting(layer, experts, weights, experts, weights)


def some_steps(seed: int, tokens: int, count: int = 40) -> list[Step]:
    random = np.random.default_rng(seed)
    likely = random.permutation(np.arange(EXPERTS)) ** 2 + 1.0
    steps = []
    for _ in range(count):
        rows = [
            random.choice(EXPERTS, TOP_K, replace=False, p=likely / likely.sum())
            for _ in range(LAYERS * tokens)
        ]
        steps.append(Step(np.array(rows, dtype=np.int64).reshape(LAYERS, tokens, TOP_K)))
    return steps


def orders_of(steps: list[Step]) -> list[NDArray[np.int32]]:
    return [np.stack([use_order(layer, EXPERTS) for layer in step.chosen]) for step in steps]


@pytest.mark.parametrize("slots", [1, 3, 6, 11, 12])
@pytest.mark.parametrize("tokens", [1, 4])
def test_they_are_those_of_the_replay(slots: int, tokens: int) -> None:
    steps = some_steps(slots + tokens, tokens)
    orders = orders_of(steps)
    loads = np.stack([order >= 0 for order in orders]).astype(np.uint32)
    for name, values in (("lru", last_uses(orders)), ("belady", next_uses(orders))):
        cache = caches.create(name, LAYERS, EXPERTS, TOP_K)
        known = Future(loads) if cache.needs_future else None
        expected = replay_hit_rates(cache, steps, LAYERS, EXPERTS, slots, known)
        assert replayed(orders, values, slots * LAYERS, 0) == pytest.approx(expected), name


def test_slots_that_layers_cannot_share_evenly_are_used() -> None:
    orders = orders_of(some_steps(1, 1))
    rates = [replayed(orders, next_uses(orders), slots, 0) for slots in range(0, 37)]
    assert rates[0] == 0.0
    assert rates == sorted(rates)
    assert rates[4] > rates[3]


def test_padding_is_no_use() -> None:
    chosen = np.array([[4, 2, UNUSED], [7, UNUSED, UNUSED]])
    assert use_order(chosen, 8).tolist() == [-1, -1, 1, -1, 2, -1, -1, 5]


def test_the_first_half_fills_the_caches() -> None:
    order = np.stack([use_order(np.array([[0, 1, 2]]), EXPERTS)] * LAYERS)
    window = [RoutedStep(order, 9, 6)] * 10
    found = hit_facts(window, slots=9)
    assert found is not None
    assert (found.window_steps, found.actual, found.lru, found.belady) == (5, 6 / 9, 1.0, 1.0)
    assert found.ratio == 9 / 36
    without = hit_facts(window, slots=0)
    assert without is not None
    assert (without.actual, without.ratio) == (None, 0.25)
    assert hit_facts(window[:3], slots=9) is None
