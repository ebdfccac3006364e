"""Do the caches value experts as their definitions say? Small sequences, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from brain_parts import Slots

from made_up import exact_belief, routing_of, small_model, stated_physics, view_of
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.routing import ExpertId
from moesaic.core.view import Flight
from moesaic.policies.cache import caches
from moesaic.policies.cache.base import Cache
from moesaic.policies.cache.mrs import Mrs
from moesaic.policies.compose import Composition
from moesaic.policies.future import Future
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.shape import Shape


def order(cache: Cache, layer: int = 0) -> list[int]:
    """Experts from the one to be evicted first to the one kept longest."""
    return [int(e) for e in np.argsort(cache.values[layer], kind="stable")]


def test_lru_evicts_the_longest_unused() -> None:
    cache = caches.create("lru", 1, 4, 2)
    for row in ([0, 1], [2, 0], [3, 2]):
        cache.observe(routing_of(0, [row]))
    assert order(cache) == [1, 0, 2, 3]


def test_lru_counts_later_tokens_and_better_ranks_as_more_recent() -> None:
    cache = caches.create("lru", 1, 4, 2)
    cache.observe(routing_of(0, [[3, 0], [1, 2]]))
    assert order(cache) == [0, 3, 2, 1]


def test_lru_values_any_use_above_none() -> None:
    cache = caches.create("lru", 1, 4, 2)
    cache.observe(routing_of(0, [[3, 0]]))
    assert cache.values[0, [3, 0]].min() > cache.values[0, [1, 2]].max()


def test_lru_compares_layers_by_one_clock() -> None:
    cache = caches.create("lru", 2, 3, 1)
    cache.observe(routing_of(0, [[0]]))
    cache.observe(routing_of(1, [[0]]))
    cache.observe(routing_of(0, [[1]]))
    assert cache.values[0, 0] < cache.values[1, 0] < cache.values[0, 1]


def test_lfu_counts_tokens() -> None:
    cache = caches.create("lfu", 1, 4, 2)
    cache.observe(routing_of(0, [[0, 1], [0, 2], [0, 2]]))
    cache.observe(routing_of(0, [[1, 3]]))
    assert cache.values[0].tolist() == [3, 2, 2, 1]


def test_mrs_is_equation_3_with_twice_top_k() -> None:
    """alpha = 1/2, K = 1, p = 2: the third score (0.2) counts for nothing.

    First token: S = 1/2 (0.5, 0.25, 0, 0) = (0.25, 0.125, 0, 0).
    Second: S = 1/2 (0, 0, 0.25, 0.5) + 1/2 S = (0.125, 0.0625, 0.125, 0.25)."""
    cache = Mrs(1, 4, top_k=1, alpha=0.5)
    cache.observe(routing_of(0, [[0, 1, 2]], [[0.5, 0.25, 0.2]], k=1))
    assert cache.values[0].tolist() == [0.25, 0.125, 0, 0]
    cache.observe(routing_of(0, [[3, 2, 1]], [[0.5, 0.25, 0.2]], k=1))
    assert cache.values[0].tolist() == [0.125, 0.0625, 0.125, 0.25]


def test_mrs_takes_the_mean_of_several_tokens() -> None:
    cache = Mrs(1, 3, top_k=1, alpha=0.5)
    cache.observe(routing_of(0, [[0, 1], [0, 2]], [[0.5, 0.25], [0.25, 0.125]], k=1))
    assert cache.values[0].tolist() == [0.1875, 0.0625, 0.03125]


def test_mrs_keeps_an_expert_that_was_nearly_chosen() -> None:
    """What sets it apart from LRU: scores below top-k count (HybriMoE section IV-D)."""
    seen = [
        routing_of(0, [[0, 2]], [[0.5, 0.45]], k=1),
        routing_of(0, [[1, 2]], [[0.5, 0.45]], k=1),
    ]
    mrs, lru = caches.create("mrs", 1, 3, 1), caches.create("lru", 1, 3, 1)
    for routing in seen:
        mrs.observe(routing)
        lru.observe(routing)
    assert order(mrs) == [0, 1, 2]
    assert order(lru) == [2, 0, 1]


def test_mrs_top_p_can_be_set_and_never_exceeds_the_experts() -> None:
    assert Mrs(1, 8, top_k=2).top_p == 4
    assert Mrs(1, 8, top_k=2, top_p=3).top_p == 3
    assert Mrs(1, 3, top_k=2).top_p == 3


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.5])
def test_mrs_refuses_an_impossible_alpha(alpha: float) -> None:
    with pytest.raises(ImpossibleSetting, match="alpha"):
        Mrs(1, 4, 1, alpha=alpha)


def test_belady_evicts_what_is_used_last() -> None:
    loads = np.zeros((4, 1, 4), dtype=np.uint32)
    for step, expert in enumerate([0, 2, 1, 0]):
        loads[step, 0, expert] = 1
    cache, future = caches.create("belady", 1, 4, 1), Future(loads)
    cache.set_future(future)
    future.step = 0
    cache.observe(routing_of(0, [[0]]))
    assert order(cache) == [3, 0, 1, 2]  # never, at 3, at 2, at 1
    future.step = 3
    cache.observe(routing_of(0, [[0]]))
    assert len(set(cache.values[0].tolist())) == 1, "nothing is used any more"


def test_belady_compares_layers_by_one_clock() -> None:
    loads = np.zeros((2, 2, 2), dtype=np.uint32)
    loads[0, :, 0] = loads[1, :, 0] = 1
    cache, future = caches.create("belady", 2, 2, 1), Future(loads)
    cache.set_future(future)
    future.step = 0
    for layer in range(2):
        cache.observe(routing_of(layer, [[0]]))
    assert cache.values[0, 0] > cache.values[1, 0] > cache.values[1, 1]


def test_free_slots_are_taken_first_then_the_cheapest_that_is_worth_less() -> None:
    values = [[5.0, 1.0, 3.0, 4.0, 2.0, 0.0]]
    slots = Slots(view_of([(0, 0), (0, 1)], 3, 1), values, per_layer=True)
    assert slots.admit(0, 2, 3.0) == "free"
    assert slots.admit(0, 3, 4.0) == ExpertId(0, 1)
    assert slots.admit(0, 4, 2.0) is None, "only expert 0 is left, and worth more"


def test_shielded_experts_and_those_under_way_stay() -> None:
    values = [[0.0, 1.0, 2.0, 9.0, 9.0, 9.0]]
    view = view_of([(0, 0), (0, 1)], 3, 1, flight=Flight(0, 2, 10))
    slots = Slots(view, values, per_layer=True)
    slots.shield(0, 0)
    assert slots.admit(0, 3, 9.0) == ExpertId(0, 1)
    assert slots.admit(0, 4, 9.0) is None


@pytest.mark.parametrize(("per_layer", "victim"), [(True, (1, 0)), (False, (0, 0))])
def test_layers_compete_for_slots_only_if_they_share_them(
    per_layer: bool, victim: tuple[int, int]
) -> None:
    view = view_of([(0, 0), (1, 0)], 2, 2, 2)
    slots = Slots(view, [[1.0, 9.0], [2.0, 9.0]], per_layer)
    assert slots.admit(1, 1, 9.0) == victim


@pytest.mark.parametrize(("admission", "kept"), [("bypass", False), ("always", True)])
def test_admission_says_whether_a_cheap_newcomer_takes_a_slot(admission: str, kept: bool) -> None:
    """A demanded expert that is worth less than every resident: staged, or kept."""
    policies = PolicySet.of(
        schedule="gpu-only", cache=f"lfu:admission={admission}", prefetch="none", promote=False
    )
    model = small_model(layers=1, experts=4, top_k=1)
    physics = stated_physics(lambda t: 1, lambda t: 50 * t, transfer=20, model=model)
    composition = Composition(policies, Shape(1, 4, 1), slots=1, checked=True)
    brain = composition.brain(exact_belief(physics))
    view = view_of([(0, 0)], 1, 1, 4)
    for _ in range(5):
        brain.plan(routing_of(0, [[0]]), view)
    (move,) = brain.plan(routing_of(0, [[1]]), view).transfers
    assert move.keep == kept
    assert move.victim == (ExpertId(0, 0) if kept else None)
