"""Does a seed lead to the same tokens, whatever else is in the batch?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from sampling_examples import ASSORTED, EVERYTHING, logits_of, probabilities

from moesaic.engine.sampling.sampler import Sampler
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.engine.sampling.sampling_state import SamplingState


def generate(batch: Sequence[SamplingParams], steps: int, mine: int) -> list[int]:
    """Tokens of one request of a batch; its logits depend on the step only."""
    sampler = Sampler()
    rows = [SamplingState.start(params, [1, 2, 3]) for params in batch]
    for step in range(steps):
        logits = logits_of(100 + step, 2000, len(rows), scale=2.0)
        logits[mine] = logits_of(step, 2000, scale=2.0)[0]
        for row, sampled in zip(rows, sampler.sample(logits, rows), strict=True):
            row.append(sampled.token)
    return rows[mine].seen[3:].tolist()


@pytest.mark.parametrize("params", ASSORTED)
def test_a_seed_gives_the_same_tokens_in_any_company(params: SamplingParams) -> None:
    params = replace(params, seed=7)
    alone = generate([params], 12, 0)
    assert generate([params], 12, 0) == alone
    assert generate([params, *ASSORTED], 12, 0) == alone
    assert generate([*reversed(ASSORTED), params], 12, len(ASSORTED)) == alone
    assert generate([replace(params, seed=8), params], 12, 1) == alone


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_company_does_not_change_a_bit_of_a_distribution(scale: float) -> None:
    logits = logits_of(6, 3000, len(ASSORTED), scale)
    drawing = [replace(params, temperature=params.temperature or 1.0) for params in ASSORTED]
    together = probabilities(logits, drawing)
    for row, params in enumerate(drawing):
        assert torch.equal(probabilities(logits[row : row + 1], [params])[0], together[row])


def test_seeds_differ_from_each_other_and_fresh_entropy_differs_each_time() -> None:
    seeds = [0, 1, -1, 2**70, None, None]
    runs = [generate([SamplingParams(seed=seed)], 10, 0) for seed in seeds]
    assert len({tuple(run) for run in runs}) == len(seeds)


def test_asking_for_log_probabilities_changes_no_token() -> None:
    plain, asking = (generate([replace(EVERYTHING, seed=3, logprobs=n)], 10, 0) for n in (None, 5))
    assert plain == asking
