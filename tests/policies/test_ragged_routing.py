"""Do policies see of a ragged routing what is used, and nothing of its padding?"""

from __future__ import annotations

import numpy as np
import pytest
from brain_parts import Forecasting

from made_up import RandomStep, random_steps, routing_of, small_model
from moesaic.core.routing import LayerRouting, cut
from moesaic.policies.cache import caches
from moesaic.policies.hit_rate_replay import replay_hit_rates
from moesaic.policies.timelines import EXPERT, LOAD, READY, gather

EXPERTS = 5
# The last expert is never used: padding taken for an index would stand for it.
RAGGED = cut(routing_of(0, [[3, 0, 4], [0, 1, 4]]), np.array([2, 1]))


def test_gather_counts_used_experts_only() -> None:
    table, loads = np.zeros((3, EXPERTS), np.int64), np.zeros(EXPERTS, np.int64)
    resident = np.array([1, 0, 0, 0, 1], np.uint8)
    assert gather(RAGGED.experts, resident, table, loads) == 2
    assert table[EXPERT, :2].tolist() == [0, 3]
    assert table[LOAD, :2].tolist() == [2, 1]
    assert table[READY, :2].tolist() == [0, -1]
    assert not loads.any()


@pytest.mark.parametrize("name", ["lru", "lfu"])
def test_caches_of_uses_value_used_experts_only(name: str) -> None:
    cache = caches.create(name, 1, EXPERTS, 3)
    cache.observe(RAGGED)
    assert np.flatnonzero(cache.values[0]).tolist() == [0, 3]


def test_an_lru_cache_may_count_what_a_gate_left_out() -> None:
    """As used before what the same token used; without a gate it is the usual cache."""
    cache = caches.create("lru", 1, EXPERTS, 3, counts="ranked")
    cache.observe(RAGGED)
    oldest_first = np.argsort(cache.values[0]).tolist()
    assert oldest_first == [2, 3, 4, 1, 0], "2 was never ranked; token 1 ranks 0, 1, 4, uses 0"
    whole = routing_of(0, [[3, 0, 4], [0, 1, 4]])
    usual = caches.create("lru", 1, EXPERTS, 3)
    for each in (cache, usual):
        each.observe(whole)
    assert np.argsort(cache.values[0]).tolist() == np.argsort(usual.values[0]).tolist()


def test_pairs_with_padding_are_not_learned() -> None:
    """As if the tokens had been routed with one expert each."""
    whole = [routing_of(layer, [[layer + 1, 0], [2, 4]]) for layer in range(2)]
    narrow = [_first_only(routing) for routing in whole]
    ragged = [cut(routing, np.array([1, 1])) for routing in whole]
    assert _learned(ragged) == _learned(narrow) != _learned(whole)


def _first_only(routing: LayerRouting) -> LayerRouting:
    return routing_of(routing.layer, routing.ranked[:, :1].tolist())


def _learned(routings: list[LayerRouting]) -> list[float]:
    predictor = Forecasting(layers=2, experts=EXPERTS, top_k=EXPERTS, ahead=1)
    for routing in routings:
        predictor.observe(routing)
    (ahead,) = predictor.forecast(routings[0])
    pairs = zip(ahead.ranked.ravel().tolist(), ahead.scores.ravel().tolist(), strict=True)
    return [value for pair in pairs for value in pair]


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("name", ["lru", "lfu"])
def test_hit_rates_are_those_of_a_model_with_fewer_experts(name: str, one_by_one: bool) -> None:
    model = small_model(2, 6, 3)
    steps = random_steps(3, 40, model, tokens=2)
    cuts = np.array([2, 2])
    ragged = [RandomStep(tuple(cut(r, cuts) for r in step.routings)) for step in steps]
    narrow = [
        RandomStep(tuple(routing_of(r.layer, r.experts[:, :2].tolist()) for r in step.routings))
        for step in steps
    ]
    rates = [
        replay_hit_rates(
            caches.create(name, 2, 6, 3), some, 2, 6, slots_per_layer=3, one_by_one=one_by_one
        )
        for some in (ragged, narrow, steps)
    ]
    assert rates[0] == rates[1] != rates[2]
