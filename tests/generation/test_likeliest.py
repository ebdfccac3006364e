"""Are the likeliest tokens found without sorting, and none of those tied with them lost?"""

from __future__ import annotations

import numpy as np
import pytest

from moesaic.engine.sampling.candidates import best_tokens, tokens_from


def scores_of(seed: int, vocabulary: int, step: float) -> np.ndarray:
    """Multiples of `step`, so that some are equal."""
    found = np.random.default_rng(seed).normal(size=vocabulary)
    return (np.round(found / step) * step).astype(np.float32)


@pytest.mark.parametrize("vocabulary", [3, 64, 1000, 20_007])
@pytest.mark.parametrize("step", [1e-5, 0.3])
def test_the_best_are_among_the_found_ones(vocabulary: int, step: float) -> None:
    for seed in range(20):
        scores = scores_of(seed, vocabulary, step)
        for count in (1, 2, 40, 512, vocabulary - 1, vocabulary, 10**30):
            if count < 1:
                continue
            found = best_tokens(scores, count)
            last = np.sort(scores)[max(vocabulary - count, 0)]
            assert (np.diff(found) > 0).all()
            assert set(np.flatnonzero(scores >= last)) <= set(found)


def test_few_others_are_found_with_them() -> None:
    """Or sorting them would take as long as sorting all."""
    scores = scores_of(1, 151_936, 1e-5)
    assert len(best_tokens(scores, 40)) < 60
    assert len(best_tokens(scores, 512)) < 800


@pytest.mark.parametrize("vocabulary", [5, 300, 20_007])
@pytest.mark.parametrize("bound", [-9.0, 0.3, 1.2, 2.7, 9.0])
def test_all_scores_from_a_bound_on_are_found(vocabulary: int, bound: float) -> None:
    for seed in range(10):
        scores = scores_of(seed, vocabulary, 0.3)
        assert np.array_equal(
            tokens_from(scores, bound), np.flatnonzero(scores >= np.float32(bound))
        )
