"""Does a trace that knows only the chosen experts fill the ranks of a captured step?"""

from __future__ import annotations

import numpy as np

from moesaic.core.routing import LayerRouting
from moesaic.machines.captured.replayed_ranks import ranked_to


def routing(ranked: list[list[int]], scores: list[list[float]]) -> LayerRouting:
    chosen, found = np.array(ranked, dtype=np.int64), np.array(scores, dtype=np.float32)
    return LayerRouting(0, chosen[:, :2].copy(), found[:, :2].copy(), chosen, found)


def test_experts_that_are_not_ranked_follow_with_nothing() -> None:
    ranked, scores = ranked_to(5, 6, routing([[4, 1], [0, 5]], [[0.6, 0.4], [0.7, 0.3]]))
    assert ranked.tolist() == [[4, 1, 0, 2, 3], [0, 5, 1, 2, 3]]
    assert scores.tolist() == [
        [np.float32(0.6), np.float32(0.4), 0, 0, 0],
        [np.float32(0.7), np.float32(0.3), 0, 0, 0],
    ]
    assert ranked.dtype == np.int64
    assert scores.dtype == np.float32


def test_more_ranks_than_wanted_are_cut() -> None:
    ranked, scores = ranked_to(2, 6, routing([[4, 1, 2]], [[0.6, 0.3, 0.1]]))
    assert ranked.tolist() == [[4, 1]]
    assert scores.shape == (1, 2)
