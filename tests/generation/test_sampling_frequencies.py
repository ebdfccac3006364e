"""Are tokens drawn as often as their probabilities say?"""

from __future__ import annotations

import pytest
import stock_sampling as stock
import torch
from sampling_examples import EVERYTHING, draws, logits_of
from scipy.stats import chi2

from moesaic.engine.sampling.sampler import Sampler
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.engine.sampling.sampling_state import SamplingState


def chi_square(tokens: list[int], expected: torch.Tensor) -> tuple[float, float]:
    """The statistic, and what a right sampler exceeds once in a million times. Tokens expected
    fewer than five times count as one."""
    hoped = expected * len(tokens)
    counts = torch.bincount(torch.tensor(tokens), minlength=len(expected)).double()
    assert not counts[expected == 0].any()
    common = hoped >= 5
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    hoped = torch.cat([hoped[common], hoped[~common].sum()[None]])
    observed, hoped = observed[hoped > 0], hoped[hoped > 0]
    assert len(hoped) > 5
    return float(((observed - hoped) ** 2 / hoped).sum()), float(chi2.isf(1e-6, len(hoped) - 1))


@pytest.mark.parametrize(
    "params",
    [SamplingParams(), EVERYTHING, SamplingParams(top_p=0.9), SamplingParams(temperature=0.5)],
    ids=["plain", "everything", "top-p", "cold"],
)
def test_frequencies_are_the_stock_probabilities(params: SamplingParams) -> None:
    logits = logits_of(4, 60, scale=1.5)
    likeliest = int(logits.argmax())
    tokens = draws(logits, params, 20_000, prompt=likeliest)
    statistic, bound = chi_square(tokens, stock.probabilities(logits[0], params, [likeliest]))
    assert statistic < bound


def test_the_bound_would_see_a_temperature_that_is_a_tenth_off() -> None:
    logits = logits_of(4, 60, scale=1.5)
    tokens = draws(logits, SamplingParams(temperature=1.1), 20_000)
    statistic, bound = chi_square(tokens, stock.probabilities(logits[0], SamplingParams()))
    assert statistic > bound


def test_successive_tokens_of_one_request_have_these_frequencies_too() -> None:
    logits = logits_of(5, 30, scale=1.0)
    row, sampler = SamplingState.start(SamplingParams(seed=1), []), Sampler()
    tokens = [sampler.sample(logits, [row])[0].token for _ in range(5000)]
    statistic, bound = chi_square(tokens, stock.probabilities(logits[0], row.params))
    assert statistic < bound
