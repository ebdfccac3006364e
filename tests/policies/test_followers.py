"""What follows a token's experts, and what a cache makes of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from made_up import routing_of
from moesaic.core.routing import LayerRouting
from moesaic.policies.cache.followers import NEWEST, only_token
from moesaic.policies.cache.learned_speed import LearnedSpeed
from moesaic.policies.hit_rate_replay import replay_hit_rates

EXPERTS = 12
FORECAST = 5  # the plane of a cache's memory


class Step:
    def __init__(self, chosen: list[int]) -> None:
        self._chosen = chosen

    def layer(self, layer: int) -> LayerRouting:
        return routing_of(layer, [self._chosen])


def in_a_circle(steps: int) -> Iterator[Step]:
    """Six pairs of experts, one after the other: averages see twelve equal experts."""
    for step in range(steps):
        yield Step([2 * (step % 6), 2 * (step % 6) + 1])


def seen(steps: Iterator[Step], followers: bool = True) -> LearnedSpeed:
    cache = LearnedSpeed(1, EXPERTS, 2, followers=followers)
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


def test_hits_that_only_followers_can_foretell() -> None:
    """Of six pairs in a circle three have slots: what was used last is used again last of all."""

    def hits(followers: bool) -> float:
        cache = LearnedSpeed(1, EXPERTS, 2, followers=followers)
        return replay_hit_rates(cache, in_a_circle(600), 1, EXPERTS, 6)

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
    rows = cache.memory[2 * (FORECAST + 1) :][:EXPERTS].copy()
    for _ in range(3):
        cache.observe(routing_of(0, [[0, 5], [7, 8]]))
    cache.observe(routing_of(0, [[3, 4]]))  # follows a batch, not a token
    np.testing.assert_array_equal(rows, cache.memory[2 * (FORECAST + 1) :][:EXPERTS])


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
