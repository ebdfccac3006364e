"""Are the reported log-probabilities the model's own?"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from sampling_examples import EVERYTHING, logits_of

from moesaic.engine.sampling.sampler import Sampler
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.engine.sampling.sampling_state import SamplingState


def test_log_probabilities_are_the_models_own() -> None:
    logits = logits_of(12, 400, 4).bfloat16()
    asked = [None, 0, 2, 7]
    rows = [SamplingState.start(replace(EVERYTHING, logprobs=n, seed=1), [3]) for n in asked]
    sampled = Sampler().sample(logits, rows)
    own = logits.double().log_softmax(-1)
    assert sampled[0].logprob is None
    for row, (one, count) in enumerate(zip(sampled, asked, strict=True)):
        assert len(one.alternatives) == (count or 0)
        best = own[row].topk(count or 0)
        assert [a.token for a in one.alternatives] == best.indices.tolist()
        reported = torch.tensor([a.logprob for a in one.alternatives], dtype=torch.float64)
        assert torch.allclose(reported, best.values, atol=1e-5, rtol=0)
        if one.logprob is not None:
            assert one.logprob == pytest.approx(float(own[row, one.token]), abs=1e-5)


def test_alternatives_are_as_many_as_there_are() -> None:
    logits = torch.tensor([[1.0, float("-inf"), 2.0]])
    row = SamplingState.start(SamplingParams(temperature=0.0, logprobs=20), [])
    assert [a.token for a in Sampler().sample(logits, [row])[0].alternatives] == [2, 0]
