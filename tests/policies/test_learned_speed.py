"""Averages at several speeds, and which of them a layer's values follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from made_up import exact_belief, make_brain, routing_of, small_model, stated_physics
from moesaic.core.routing import LayerRouting
from moesaic.policies.cache.learned_speed import (
    LAG,
    LAG_WHERE_MOVES_COST,
    OF_SPEEDS,
    SPEEDS,
    LearnedSpeed,
)
from moesaic.policies.cache.two_speed import TwoSpeed
from moesaic.policies.hit_rate_replay import replay_hit_rates
from moesaic.policies.records import NUMBERS
from moesaic.policies.schedule import schedules

EXPERTS, TOP_K = 16, 2
MEAN = (4, 4)  # of all steps


class Step:
    def __init__(self, chosen: list[int]) -> None:
        self._chosen = chosen

    def layer(self, layer: int) -> LayerRouting:
        return routing_of(layer, [self._chosen])


def unlike(steps: int) -> Iterator[Step]:
    """Popular experts stay popular, and the last tokens tell nothing of the next."""
    rng, shares = np.random.default_rng(4), np.arange(EXPERTS, 0, -1) ** 1.5
    for _ in range(steps):
        yield Step(rng.choice(EXPERTS, TOP_K, replace=False, p=shares / shares.sum()).tolist())


def in_fashion(steps: int) -> Iterator[Step]:
    """Four experts for 24 tokens, then four others."""
    rng = np.random.default_rng(4)
    for step in range(steps):
        if step % 24 == 0:
            some = rng.permutation(EXPERTS)[:4]
        yield Step(rng.choice(some, TOP_K, replace=False).tolist())


def weights(cache: LearnedSpeed) -> dict[tuple[int, int], float]:
    own = np.exp(cache.numbers[NUMBERS + 1 :][: len(OF_SPEEDS)])
    return dict(zip(OF_SPEEDS, (own / own.sum()).tolist(), strict=True))


def seen(steps: Iterator[Step]) -> LearnedSpeed:
    cache = LearnedSpeed(1, EXPERTS, TOP_K, lag=LAG_WHERE_MOVES_COST)
    for step in steps:
        cache.observe(step.layer(0))
    return cache


def test_one_step_is_all_that_is_known() -> None:
    """Two tokens; K = 1, so two scores of each count. Every average is the first step's."""
    cache = LearnedSpeed(2, 4, top_k=1)
    scores = [[0.5, 0.25, 0.125], [0.25, 0.25, 0.125]]
    cache.observe(routing_of(1, [[0, 1, 3], [0, 2, 3]], scores, k=1))
    scored = np.array([0.75, 0.25, 0.25, 0.0]) / 1.25
    used = np.array([1.0, 0.0, 0.0, 0.0])
    # Eight forecasts, each as likely: five of one speed, three half of the mean, which counts uses.
    np.testing.assert_allclose(cache.values[1], (5.5 * scored + 2.5 * used) / 8)
    assert not cache.values[0].any(), "the other layer has seen nothing"


def test_averages_move_at_their_speeds() -> None:
    cache = LearnedSpeed(1, 2, top_k=1)
    for _ in range(199):
        cache.observe(routing_of(0, [[0]], [[1.0]], k=1))
    cache.observe(routing_of(0, [[1]], [[1.0]], k=1))
    expected = [speed or 1 / 200 for speed in SPEEDS]
    np.testing.assert_allclose(cache.memory[: len(SPEEDS), 0, 1], expected)


def test_values_follow_the_mean_where_the_last_tokens_tell_nothing() -> None:
    found = weights(seen(unlike(400)))
    assert found[MEAN] + found[3, 3] + found[2, 4] > 0.8


def test_values_follow_the_last_tokens_where_these_tell_what_comes() -> None:
    found = weights(seen(in_fashion(400)))
    assert found[0, 0] + found[1, 1] + found[0, 4] + found[1, 4] > 0.8


def test_a_change_is_learned() -> None:
    cache = seen(unlike(400))
    for step in in_fashion(400):
        cache.observe(step.layer(0))
    assert weights(cache)[MEAN] < 0.1


@pytest.mark.parametrize("make", [unlike, in_fashion])
def test_it_hits_about_as_often_as_the_better_kind_of_average(
    make: Callable[[int], Iterator[Step]],
) -> None:
    """Of those that follow a few tokens and those that follow all of them."""

    def hits(cache: LearnedSpeed | TwoSpeed) -> float:
        return replay_hit_rates(cache, make(600), 1, EXPERTS, 5)

    only_fast = TwoSpeed(1, EXPERTS, TOP_K, fast=0.2, slow=0.2)
    only_slow = TwoSpeed(1, EXPERTS, TOP_K, fast=0.001, slow=0.001)
    fast, slow = hits(only_fast), hits(only_slow)
    assert abs(fast - slow) > 0.05, "or nothing is shown"
    assert hits(LearnedSpeed(1, EXPERTS, TOP_K)) > max(fast, slow) - 0.02


def test_values_are_shares() -> None:
    cache = seen(in_fashion(50))
    assert cache.values[0].sum() == pytest.approx(1.0)
    assert cache.values.min() >= 0.0


def test_a_profile_counts_as_tokens_seen_before() -> None:
    """Expert 0 had 90 of 100 uses in the profile, 2 had none: one token for 2 does not make it
    worth more. A layer without a profile starts from nothing."""
    cache = LearnedSpeed(2, 3, 1)
    cache.start_from(np.array([[90, 10, 0], [0, 0, 0]]))
    assert cache.values.tolist() == [[0.9, 0.1, 0.0], [0, 0, 0]]
    for layer in range(2):
        cache.observe(routing_of(layer, [[2]]))
    assert cache.values[0].argmax() == 0
    assert cache.values[1].tolist() == [0, 0, 1]


def test_a_token_that_uses_nothing_changes_nothing() -> None:
    cache = seen(in_fashion(2 * LAG_WHERE_MOVES_COST + 3))
    before = cache.values.copy(), cache.memory.copy(), cache.numbers.copy()
    cache.observe(routing_of(0, [[-1, -1]]))
    for was, now in zip(before, (cache.values, cache.memory, cache.numbers), strict=True):
        np.testing.assert_array_equal(was, now)


def test_a_short_lag_follows_the_last_tokens_sooner() -> None:
    """Four tokens of one expert, then four of another: right for the next token, and wrong for one
    of eight later."""
    soon, late = LearnedSpeed(1, 4, 1, lag=1), LearnedSpeed(1, 4, 1, lag=8)
    for token in range(400):
        for cache in (soon, late):
            cache.observe(routing_of(0, [[token // 4 % 4]]))
    fastest = [weights(cache)[0, 0] + weights(cache)[0, 4] for cache in (soon, late)]
    assert fastest[0] > 0.8 > 0.2 > fastest[1]


@pytest.mark.parametrize(("asked", "free", "costly"), [(None, 1, 8), (3, 3, 3)])
def test_it_looks_further_where_moves_cost_something(
    asked: int | None, free: int, costly: int
) -> None:
    """As soon as the brain believes so, and only with a schedule that counts it."""
    physics = stated_physics(lambda t: 10, lambda t: 100, transfer=80)
    without = exact_belief(physics)
    cache = "learned-speed" if asked is None else f"learned-speed:lag={asked}"
    brain = make_brain(small_model(), without, 3, schedule="best-split", cache=cache)
    assert brain.cache.numbers[LAG] == free
    brain.belief = replace(without, cpu_slowed=400)
    assert brain.cache.numbers[LAG] == costly
    assert brain.state.cache.numbers[LAG] == costly, "compiled code reads it there"
    brain.schedule = schedules.create("hybrid")
    assert brain.cache.numbers[LAG] == free


@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf])
def test_scores_of_a_broken_model_are_not_remembered(score: float) -> None:
    cache = seen(in_fashion(20))
    before = cache.values.copy(), cache.memory.copy(), cache.numbers.copy()
    cache.observe(routing_of(0, [[0, 1, 2]], [[0.5, score, 0.1]], k=2))
    for was, now in zip(before, (cache.values, cache.memory, cache.numbers), strict=True):
        np.testing.assert_array_equal(was, now)


def test_scores_of_nothing_are_uses() -> None:
    cache = LearnedSpeed(1, 4, 2)
    cache.observe(routing_of(0, [[3, 1]], [[0.0, 0.0]]))
    assert cache.values[0].tolist() == [0, 0.5, 0, 0.5]


def test_a_negative_score_leaves_numbers() -> None:
    cache = LearnedSpeed(1, 4, 2)
    for _ in range(3):
        cache.observe(routing_of(0, [[3, 1]], [[0.5, -0.25]]))
    assert np.isfinite(cache.values).all()
    assert np.isfinite(cache.numbers).all()


def test_tokens_of_many_experts() -> None:
    """The probability of 256 of 512 is smaller than any number."""
    cache, rng = LearnedSpeed(1, 512, 256), np.random.default_rng(0)
    for _ in range(12):
        cache.observe(routing_of(0, [rng.permutation(512)[:256].tolist()]))
    assert np.isfinite(cache.values).all()
    assert sum(weights(cache).values()) == pytest.approx(1.0)


def test_tokens_without_an_expert_are_no_judges() -> None:
    """A step of two tokens, one of them masked, teaches as much as one of the other alone."""
    alone, masked = LearnedSpeed(1, 4, 2), LearnedSpeed(1, 4, 2)
    rng = np.random.default_rng(2)
    for _ in range(30):
        pair = rng.permutation(4)[:2].tolist()
        alone.observe(routing_of(0, [pair]))
        masked.observe(routing_of(0, [pair, [-1, -1]]))
    np.testing.assert_allclose(alone.numbers, masked.numbers)
