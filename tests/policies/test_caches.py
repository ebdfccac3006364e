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
from moesaic.policies.cache.classic import Pinned
from moesaic.policies.cache.mrs import Mrs
from moesaic.policies.cache.two_speed import TwoSpeed
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


# Small cases whose scores are worked out in the tests: several tokens, several layers, padding,
# and parameters at the ends of their ranges.


def test_two_speed_by_hand() -> None:
    """K = 1, so two scores of each token count and the third (0.125) does not.

    First step of layer 1, two tokens: means (0.375, 0.125, 0.125, 0); the slow average starts as a
    plain mean, so values are 1/2 (1/2 mean + mean) = 3/4 mean.
    Second step: mean (0, 0, 0.5, 0.25). fast' = 1/2 fast + 1/2 mean, slow' = 1/2 slow + 1/2 mean,
    as a plain mean of two steps weighs the second one half."""
    cache = TwoSpeed(3, 4, top_k=1, fast=0.5, slow=0.25)
    scores = [[0.5, 0.25, 0.125], [0.25, 0.25, 0.125]]
    cache.observe(routing_of(1, [[0, 1, 3], [0, 2, 3]], scores, k=1))
    assert cache.values[1].tolist() == [0.28125, 0.09375, 0.09375, 0]
    cache.observe(routing_of(1, [[2, 3, 0]], [[0.5, 0.25, 0.125]], k=1))
    fast = [0.09375, 0.03125, 0.28125, 0.125]
    slow = [0.1875, 0.0625, 0.3125, 0.125]
    assert cache.values[1].tolist() == [(f + s) / 2 for f, s in zip(fast, slow, strict=True)]
    assert not cache.values[[0, 2]].any(), "other layers have seen nothing"


def test_two_speed_remembers_slowly_once_it_has_seen_enough() -> None:
    """From the fourth step on a step weighs `slow` = 1/4, not 1/steps."""
    cache = TwoSpeed(1, 2, top_k=1, fast=1.0, slow=0.25)
    for _ in range(7):
        cache.observe(routing_of(0, [[0, 1]], [[1.0, 0.0]], k=1))
    cache.observe(routing_of(0, [[1, 0]], [[1.0, 0.0]], k=1))
    assert cache.values[0].tolist() == [0.375, 0.625]  # fast (0, 1), slow (3/4, 1/4)


@pytest.mark.parametrize(("experts", "counted"), [(8, 4), (3, 3)])
def test_two_speed_counts_twice_top_k_and_never_more_than_there_are(
    experts: int, counted: int
) -> None:
    cache = TwoSpeed(1, experts, top_k=2, fast=0.5, slow=0.5)
    cache.observe(routing_of(0, [list(range(experts))], [[0.125] * experts], k=2))
    assert np.count_nonzero(cache.values[0]) == counted


@pytest.mark.parametrize("name", ["lru", "lfu", "mrs", "two-speed", "learned-speed"])
@pytest.mark.parametrize("tokens", [1, 2])
def test_padding_is_no_expert(name: str, tokens: int) -> None:
    """-1 stands for no expert; as an index it would be the last one."""
    cache = caches.create(name, 1, 4, 2)
    cache.observe(routing_of(0, [[0, -1]] * tokens, [[0.5, 0.25]] * tokens))
    assert cache.values[0, 0] > 0
    assert not cache.values[0, 1:].any()


@pytest.mark.parametrize("name", ["mrs", "two-speed", "learned-speed"])
def test_what_is_never_used_again_is_nothing_before_it_is_slow(name: str) -> None:
    """Numbers below the normal ones take a CPU a hundred times as long."""
    cache = caches.create(name, 1, 4, 1)
    cache.observe(routing_of(0, [[3]]))
    for _ in range(7000):
        cache.observe(routing_of(0, [[0]]))
    for numbers in (cache.values, cache.memory):
        kept = numbers[numbers > 0]
        assert (kept >= np.finfo(np.float64).tiny).all()
    assert cache.values[0, 0] > cache.values[0, 3]


def test_one_tokens_share_is_single_precision_as_its_scores_are() -> None:
    """The product of two single-precision numbers, rounded to one: not that of doubles."""
    cache = Mrs(1, 2, top_k=1, alpha=0.1)
    cache.observe(routing_of(0, [[0, 1]], [[0.7, 0.3]], k=1))
    expected = float(np.float32(0.1) * np.float32(0.7))
    assert cache.values[0, 0] == expected != 0.1 * float(np.float32(0.7))


def test_mrs_with_alpha_1_remembers_the_newest_scores_only() -> None:
    cache = Mrs(1, 3, top_k=1, alpha=1.0)
    cache.observe(routing_of(0, [[0, 1]], [[0.5, 0.25]], k=1))
    cache.observe(routing_of(0, [[2, 1]], [[0.5, 0.125]], k=1))
    assert cache.values[0].tolist() == [0, 0.125, 0.5]


def test_a_cache_without_use_for_an_oracle_says_so() -> None:
    with pytest.raises(NotImplementedError, match="Pinned"):
        Pinned(1, 2, 1).set_future(Future(np.zeros((1, 1, 2), dtype=np.uint32)))


def _with_belady(layers: int) -> Composition:
    policies = PolicySet.of(
        schedule="gpu-only", cache="belady:pool=global", prefetch="none", promote=False
    )
    return Composition(policies, Shape(layers, 4, 1), slots=2, checked=True)


def _loads(uses: list[list[int]]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    """`uses[s][l]` is the expert of step s in layer l, of four."""
    loads = np.zeros((len(uses), len(uses[0]), 4), dtype=np.uint32)
    for step, row in enumerate(uses):
        for layer, expert in enumerate(row):
            loads[step, layer, expert] = 1
    return loads


@pytest.mark.parametrize(
    ("uses", "resident", "victim"),
    [
        ([[2], [1], [2], [0]], [(0, 0), (0, 1)], (0, 0)),  # 0 is used last, 2 before it
        ([[2], [0], [1], [2]], [(0, 0), (0, 1)], None),  # the newcomer is used last
        ([[2, 0], [2, 1], [2, 1]], [(1, 0), (1, 1)], (1, 1)),  # layer 1 has had no turn yet
    ],
)
def test_a_brain_with_belady_evicts_what_is_used_last(
    uses: list[list[int]], resident: list[tuple[int, int]], victim: tuple[int, int] | None
) -> None:
    layers = len(uses[0])
    model = small_model(layers=layers, experts=4, top_k=1)
    physics = stated_physics(lambda t: 1, lambda t: 50 * t, transfer=20, model=model)
    brain = _with_belady(layers).brain(exact_belief(physics), Future(_loads(uses)))
    plan = brain.plan(routing_of(0, [[2]]), view_of(resident, 2, layers, 4))
    (move,) = plan.transfers
    assert move.victim == (None if victim is None else ExpertId(*victim))
    assert move.keep == (victim is not None)


def test_a_profile_counts_as_tokens_seen_before() -> None:
    """Expert 0 had 90 of 100 uses in the profile, 2 had none: one token for 2 does not make it
    worth more. Without the profile it is."""
    counts = np.array([[90, 10, 0]])
    known, unknown = (TwoSpeed(1, 3, 1) for _ in range(2))
    known.start_from(counts)
    assert known.values[0].argmax() == 0, "before the first token, too"
    for cache in (known, unknown):
        cache.observe(routing_of(0, [[2]]))
    assert known.values[0].argmax() == 0
    assert unknown.values[0].argmax() == 2


def test_a_profile_weighs_as_much_as_scores_do() -> None:
    """Its shares of uses become shares of what the first token's scores add up to."""
    cache = TwoSpeed(1, 3, 1, fast=0.5, slow=0.01)
    cache.start_from(np.array([[3, 1, 0]]))
    cache.observe(routing_of(0, [[0, 2]], [[0.25, 0.15]], k=1))
    mass, slow = 0.4, 1 / 5  # the fifth token after four in the profile
    before = np.array([0.75, 0.25, 0.0]) * mass
    new = np.array([0.25, 0.0, 0.15])
    expected = before + (0.5 + slow) / 2 * (new - before)
    np.testing.assert_allclose(cache.values[0], expected, rtol=1e-6)


def test_a_layer_without_a_profile_starts_from_nothing() -> None:
    cache = TwoSpeed(2, 3, 1)
    cache.start_from(np.array([[0, 0, 0], [1, 0, 1]]))
    assert cache.values.tolist() == [[0, 0, 0], [0.5, 0, 0.5]]
    cache.observe(routing_of(0, [[1]]))
    assert np.isfinite(cache.values).all()
