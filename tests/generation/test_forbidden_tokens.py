"""Is nothing chosen that may not be: by a broken model, a ruled-out token, an early end?"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from sampling_examples import EVERYTHING, GREEDY, draws, logits_of

from moesaic.core.errors import BrokenModel
from moesaic.engine.sampling.sampler import Sampler
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.engine.sampling.sampling_state import SamplingState


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), EVERYTHING])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_broken_model_is_reported(
    params: SamplingParams, value: float, dtype: torch.dtype
) -> None:
    logits = logits_of(11, 100, 3).to(dtype)
    logits[1, 40] = value
    with pytest.raises(BrokenModel, match="1 of 3 sequences") as caught:
        Sampler().sample(logits, [SamplingState.start(params, [1]) for _ in range(3)])
    assert caught.value.rows == (1,)


def test_logits_that_allow_nothing_are_broken_too() -> None:
    with pytest.raises(BrokenModel):
        Sampler().sample(
            torch.full((1, 9), float("-inf")), [SamplingState.start(SamplingParams(), [])]
        )


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_k=50), EVERYTHING])
def test_what_the_model_rules_out_is_never_drawn(params: SamplingParams) -> None:
    logits = torch.full((1, 100), float("-inf"))
    logits[0, [5, 70]] = torch.tensor([0.3, -0.3])
    assert set(draws(logits, params, 1000)) == {5, 70}


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=1, top_k=2)])
def test_the_end_must_wait_for_min_tokens(params: SamplingParams) -> None:
    logits = torch.tensor([[0.0, 1.0, 9.0, 40.0, 50.0]])
    sampler = Sampler([4, 3, 900])
    row = SamplingState.start(replace(params, min_tokens=3), [4, 4, 4, 4])
    tokens = []
    for _ in range(4):
        row.append(sampler.sample(logits, [row])[0].token)
        tokens.append(row.seen[-1])
    assert all(token < 3 for token in tokens[:3])
    assert tokens[3] == 4


def test_an_empty_batch_has_no_tokens() -> None:
    assert Sampler().sample(torch.zeros(0, 10), []) == []


def test_on_a_tie_top_k_1_takes_what_greedy_takes() -> None:
    """The first of equals, whatever the seed: drawing among them would not be the best token."""
    logits = torch.tensor([[0.0, 2.0, 5.0, 5.0, 5.0, 1.0]]).bfloat16()
    taken = set()
    for seed in range(40):
        for params in (
            SamplingParams(temperature=0.0, seed=seed),
            SamplingParams(top_k=1, seed=seed),
            SamplingParams(top_k=1, temperature=1.7, top_p=0.5, seed=seed),
            SamplingParams(top_k=1, logit_bias={0: 1.0}, seed=seed),
        ):
            (one,) = Sampler().sample(logits, [SamplingState.start(params, [1])])
            taken.add(one.token)
    assert taken == {2}
