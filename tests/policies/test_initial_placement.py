"""Who is in GPU memory at first: shares of layers, ties, and slots that do not divide evenly."""

from __future__ import annotations

import numpy as np
import pytest

from moesaic.core.routing import ExpertId
from moesaic.policies.compose import initial_placement

COUNTS = np.array([[1, 3, 3, 3], [9, 9, 0, 9], [0, 0, 0, 0]])


@pytest.mark.parametrize(
    ("slots", "shares"), [(0, [0, 0, 0]), (3, [1, 1, 1]), (4, [2, 1, 1]), (5, [2, 2, 1])]
)
def test_the_first_layers_get_what_is_left_over(slots: int, shares: list[int]) -> None:
    placed = initial_placement("popular", COUNTS, slots, per_layer=True)
    assert [sum(at.layer == layer for at in placed) for layer in range(3)] == shares


def test_of_equally_popular_experts_the_first_come() -> None:
    placed = initial_placement("popular", COUNTS, 5, per_layer=True)
    assert placed == [ExpertId(*at) for at in ((0, 1), (0, 2), (1, 0), (1, 1), (2, 0))]
    placed = initial_placement("popular", COUNTS, 5, per_layer=False)
    assert placed == [ExpertId(*at) for at in ((1, 0), (1, 1), (1, 3), (0, 1), (0, 2))]


def test_ties_are_broken_by_number_among_many_experts_too() -> None:
    """Sorting algorithms that are not stable keep the order of a few equal ones by accident."""
    counts = np.tile([1, 0], (1, 64)).astype(np.int64)
    for per_layer in (True, False):
        placed = initial_placement("popular", counts, 100, per_layer)
        even, odd = range(0, 128, 2), range(1, 2 * 36, 2)
        assert [at.expert for at in placed] == [*even, *odd]


@pytest.mark.parametrize(("slots", "whole"), [(3, 0), (4, 1), (7, 1), (12, 3)])
def test_layers_are_placed_whole(slots: int, whole: int) -> None:
    placed = initial_placement("layers", COUNTS, slots, per_layer=False)
    assert placed == [ExpertId(layer, e) for layer in range(whole) for e in range(4)]


def test_nothing_is_there_where_that_was_asked_for() -> None:
    assert initial_placement("empty", COUNTS, 12, per_layer=True) == []
