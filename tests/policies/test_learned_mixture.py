"""A mixture of averages and followers: which of them a layer's values follow."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from made_up import routing_of
from moesaic.core.routing import LayerRouting
from moesaic.policies.cache.followers import NEWEST, only_token
from moesaic.policies.cache.learned_mixture import (
    FOLLOWERS,
    FORECASTS,
    LAG,
    LAG_WHERE_FREE,
    SHARPENED,
    LearnedMixture,
)
from moesaic.policies.cache.learned_speed import LAG_WHERE_MOVES_COST, LearnedSpeed
from moesaic.policies.hit_rate_replay import replay_hit_rates
from moesaic.policies.records import NUMBERS

EXPERTS, MEAN = 24, 4


class Step:
    def __init__(self, chosen: list[int]) -> None:
        self._chosen = chosen

    def layer(self, layer: int) -> LayerRouting:
        return routing_of(layer, [self._chosen])


def of_topics(steps: int) -> Iterator[Step]:
    """Eight topics of six experts each, which share some; another topic every six tokens."""
    rng = np.random.default_rng(1)
    topics = [rng.permutation(EXPERTS)[:6] for _ in range(8)]
    for step in range(steps):
        if step % 6 == 0:
            topic = topics[rng.integers(8)]
        yield Step(rng.choice(topic, 2, replace=False).tolist())


def shares(cache: LearnedMixture) -> list[float]:
    own: list[float] = cache.numbers[NUMBERS + 1 :][:FORECASTS].tolist()
    return own


def test_topics_that_come_back_hit_more_often_than_with_averages_alone() -> None:
    """The first experts of a topic tell which others to keep."""

    def hits(cache: LearnedMixture | LearnedSpeed) -> float:
        return replay_hit_rates(cache, of_topics(2000), 1, EXPERTS, 6)

    assert hits(LearnedMixture(1, EXPERTS, 2)) > hits(LearnedSpeed(1, EXPERTS, 2)) + 0.05


def test_forecasts_are_mixed_where_each_is_right_of_some_experts() -> None:
    """One use of a token is of three experts that are always as popular, the other of one expert
    for six tokens."""
    rng, cache = np.random.default_rng(3), LearnedMixture(1, EXPERTS, 2, lag=1)
    for step in range(600):
        if step % 6 == 0:
            some = int(rng.integers(3, EXPERTS))
        cache.observe(routing_of(0, [[int(rng.integers(3)), some]]))
    found = shares(cache)
    assert max(found) < 0.95
    assert sum(found) == pytest.approx(1.0)
    assert cache.values[0].sum() == pytest.approx(1.0)


def test_followers_are_believed_where_they_are_right() -> None:
    cache = LearnedMixture(1, 12, 2, lag=1)
    for step in range(301):
        cache.observe(routing_of(0, [[2 * (step % 6), 2 * (step % 6) + 1]]))
    assert shares(cache)[FOLLOWERS] + shares(cache)[SHARPENED] > 0.9
    assert set(np.argsort(cache.values[0])[-2:]) == {2, 3}, "the next pair of the circle"


def test_what_follows_more_often_than_usual_is_sharpened() -> None:
    """0 is used often; 1 is followed by 0 as often as by 2, which is seldom used."""
    cache = LearnedMixture(1, 4, 1)
    for _ in range(60):
        for expert in (0, 3, 0, 3, 1, 2, 0, 3, 1, 0):
            cache.observe(routing_of(0, [[expert]], k=1))
    cache.observe(routing_of(0, [[1]], k=1))
    counted, sharpened = cache.memory[FOLLOWERS, 0], cache.memory[SHARPENED, 0]
    assert counted[0] == pytest.approx(counted[2], rel=0.2)
    assert sharpened[2] > 2 * sharpened[0]
    assert sharpened.sum() == pytest.approx(1.0)


def test_a_change_is_learned() -> None:
    """Sixteen popular experts in any order, then one expert for six tokens: shares move over."""
    rng, cache = np.random.default_rng(4), LearnedMixture(1, EXPERTS, 2)
    for _ in range(400):
        cache.observe(routing_of(0, [rng.choice(16, 2, replace=False).tolist()]))
    assert sum(shares(cache)[2 : MEAN + 1]) > 0.5
    for step in of_topics(400):
        cache.observe(step.layer(0))
    assert sum(shares(cache)[2 : MEAN + 1]) < 0.3


def test_a_profile_is_where_it_starts() -> None:
    cache = LearnedMixture(2, 3, 1)
    cache.start_from(np.array([[90, 10, 0], [0, 0, 0]]))
    assert cache.values.tolist() == [[0.9, 0.1, 0.0], [0, 0, 0]]
    for layer in range(2):
        cache.observe(routing_of(layer, [[2]], k=1))
    assert cache.values[0].argmax() == 0
    assert cache.values[1].argmax() == 2


@pytest.mark.parametrize(("asked", "free", "costly"), [
    (None, LAG_WHERE_FREE, LAG_WHERE_MOVES_COST), (3, 3, 3),
])  # fmt: skip
def test_it_looks_further_where_moves_cost_something(
    asked: int | None, free: int, costly: int
) -> None:
    cache = LearnedMixture(1, 4, 2, lag=asked)
    assert cache.numbers[LAG] == free
    cache.set_costly_moves(True)
    assert cache.numbers[LAG] == costly


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_scores_of_a_broken_model_and_tokens_without_experts_change_nothing(broken: float) -> None:
    cache = LearnedMixture(1, EXPERTS, 2)
    for step in of_topics(20):
        cache.observe(step.layer(0))
    before = cache.values.copy(), cache.memory.copy(), cache.numbers.copy()
    cache.observe(routing_of(0, [[0, 1, 2]], [[0.5, broken, 0.1]], k=2))
    cache.observe(routing_of(0, [[-1, -1]]))
    for was, now in zip(before, (cache.values, cache.memory, cache.numbers), strict=True):
        np.testing.assert_array_equal(was, now)


def test_steps_of_several_tokens_are_judged_and_follow_nothing() -> None:
    cache, rng = LearnedMixture(1, EXPERTS, 2), np.random.default_rng(0)
    for _ in range(30):
        cache.observe(routing_of(0, [rng.permutation(EXPERTS)[:2].tolist() for _ in range(40)]))
    np.testing.assert_array_equal(cache.memory[FOLLOWERS], cache.memory[0])
    assert sum(shares(cache)) == pytest.approx(1.0)
    assert np.isfinite(cache.values).all()


# What follows a token's experts, and what a cache makes of it.

FOLLOWED = 12
FORECAST = 5  # the plane of a cache's memory


def in_a_circle(steps: int) -> Iterator[Step]:
    """Six pairs of experts, one after the other: averages see twelve equal experts."""
    for step in range(steps):
        yield Step([2 * (step % 6), 2 * (step % 6) + 1])


def seen(steps: Iterator[Step], followers: bool = True) -> LearnedSpeed:
    cache = LearnedSpeed(1, FOLLOWED, 2, followers=followers)
    for step in steps:
        cache.observe(step.layer(0))
    return cache


def test_the_next_pair_of_a_circle_is_forecast() -> None:
    cache = seen(in_a_circle(301))  # the last step used 0 and 1
    forecast = cache.memory[FORECAST, 0]
    assert forecast.sum() == pytest.approx(1.0)
    assert forecast[2] + forecast[3] > 0.9
    assert set(np.argsort(cache.values[0])[-2:]) == {2, 3}


def test_without_followers_it_is_not() -> None:
    cache = seen(in_a_circle(301), followers=False)
    assert cache.values[0, 2] < cache.values[0, 0]


def test_hits_that_only_followers_can_forecast() -> None:
    """Of six pairs in a circle three have slots: what was used last is used again last of all."""

    def hits(followers: bool) -> float:
        cache = LearnedSpeed(1, FOLLOWED, 2, followers=followers)
        return replay_hit_rates(cache, in_a_circle(600), 1, FOLLOWED, 6)

    assert hits(followers=True) > hits(followers=False) + 0.1


def test_a_row_moves_at_its_speed() -> None:
    """0 is followed by 1 a hundred times, then once by 2."""
    cache = LearnedSpeed(1, 3, 1, followers=True)
    for expert in [0, 1] * 100 + [0, 2]:
        cache.observe(routing_of(0, [[expert]], k=1))
    row = cache.memory[2 * (FORECAST + 1), 0]
    assert row[2] == pytest.approx(NEWEST, rel=0.3)
    assert row.sum() == pytest.approx(1.0)


def test_steps_of_several_tokens_teach_no_pairs() -> None:
    cache = seen(in_a_circle(20))
    rows = cache.memory[2 * (FORECAST + 1) :][:FOLLOWED].copy()
    for _ in range(3):
        cache.observe(routing_of(0, [[0, 5], [7, 8]]))
    cache.observe(routing_of(0, [[3, 4]]))  # follows a batch, not a token
    np.testing.assert_array_equal(rows, cache.memory[2 * (FORECAST + 1) :][:FOLLOWED])


def test_a_profile_is_what_follows_until_more_is_known() -> None:
    cache = LearnedSpeed(2, 3, 1, followers=True)
    cache.start_from(np.array([[90, 10, 0], [0, 0, 0]]))
    cache.observe(routing_of(0, [[2]], k=1))
    np.testing.assert_allclose(cache.memory[FORECAST, 0], [0.9, 0.1, 0.0])
    cache.observe(routing_of(1, [[2]], k=1))
    np.testing.assert_allclose(cache.memory[FORECAST, 1], [1 / 3] * 3)


@pytest.mark.parametrize(
    ("experts", "token"),
    [([[3, 1]], 0), ([[-1, -1], [2, -1]], 1), ([[1, 2], [3, 4]], -1), ([[-1, -1]], -1)],
)
def test_the_only_token(experts: list[list[int]], token: int) -> None:
    assert only_token(np.array(experts)) == token
