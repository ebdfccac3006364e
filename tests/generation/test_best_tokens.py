"""A machine that finds the best tokens itself: is the text the same, and who asks for it?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from no_network import NoNetwork

from moesaic.core.errors import BrokenModel
from moesaic.engine.batcher import Batcher
from moesaic.engine.output_text import OutputText
from moesaic.engine.request import Request
from moesaic.engine.sampling.sampler import Sampler
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.engine.sampling.sampling_state import SamplingState

GREEDY = SamplingParams(max_tokens=6, temperature=0.0)
BROKEN = 50  # after this token the model computes NaN


class Machine(NoNetwork):
    """Finds the best tokens itself where nobody needs logits."""

    def __init__(self, finds: bool) -> None:
        super().__init__()
        self._finds = finds
        self.asked: list[bool] = []

    def step(self, inputs: Any) -> torch.Tensor:
        logits = super().step(inputs)
        for row, each in enumerate(inputs):
            if each.tokens[-1] == BROKEN:
                logits[row, 3] = float("nan")
        greedy = all(each.best for each in inputs)
        self.asked.append(greedy)
        if not (greedy and self._finds):
            return logits
        return logits.argmax(-1).where(logits.isfinite().all(-1), -1)


def request(number: int, prompt: list[int], params: SamplingParams) -> Request:
    output = MagicMock(spec=OutputText)
    output.feed.return_value = output.finish.return_value = SimpleNamespace(text="", stopped=False)
    state = SamplingState.start(params, prompt)
    return Request(number, 0, tuple(prompt), state, params.max_tokens, frozenset(), output)


def generated(finds: bool, *params: SamplingParams) -> tuple[list[Request], list[bool]]:
    machine = Machine(finds)
    batcher = Batcher(machine, Sampler(), sequences=4, max_step_tokens=8, prefix_cache=False)  # type: ignore[arg-type]
    batcher.counter = MagicMock()
    prompts = ([1, 2, 3, 4, 5, 6, 7, 8, 9], [20], [47, 48])
    requests = [request(i, prompts[i], each) for i, each in enumerate(params)]
    for each in requests:
        batcher.submit(each)
    while not batcher.idle:
        batcher.step()
    return requests, machine.asked


def test_the_text_is_the_same() -> None:
    """Also beside a prompt in pieces, and when one request meets NaN: only that one ends."""
    (got, asked), (want, _) = generated(True, *[GREEDY] * 3), generated(False, *[GREEDY] * 3)
    assert all(asked)
    for mine, others in zip(got, want, strict=True):
        assert mine.sampling.seen == others.sampling.seen
        assert mine.finish_reason == others.finish_reason
    assert [each.finish_reason for each in got] == ["length", "length", "cancelled"]
    assert isinstance(got[2].failure, BrokenModel)
    assert list(got[2].sampling.seen) == [47, 48, 49, 50]


@pytest.mark.parametrize(
    "other",
    [
        SamplingParams(max_tokens=6, temperature=1.0, seed=1),
        SamplingParams(max_tokens=6, temperature=0.0, logprobs=0),
        SamplingParams(max_tokens=6, temperature=0.0, min_tokens=3),
        SamplingParams(max_tokens=6, temperature=0.0, repetition_penalty=1.5),
        SamplingParams(max_tokens=6, temperature=0.0, logit_bias={4: 2.0}),
    ],
)
def test_whoever_needs_logits_gets_them(other: SamplingParams) -> None:
    (got, asked), (want, _) = generated(True, GREEDY, other), generated(False, GREEDY, other)
    assert not asked[1]  # the first step has tokens of the first prompt only
    for mine, others in zip(got, want, strict=True):
        assert mine.sampling.seen == others.sampling.seen


def test_best_tokens_are_refused_to_a_row_that_draws() -> None:
    row = SamplingState.start(SamplingParams(temperature=1.0), [1])
    with pytest.raises(AssertionError, match="needs its logits"):
        Sampler().sample(torch.tensor([3]), [row])
