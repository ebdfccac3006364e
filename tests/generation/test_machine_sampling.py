"""A machine that samples tokens itself: is the text the same, and who asks for it?"""

from __future__ import annotations

from array import array
from dataclasses import replace
from unittest.mock import MagicMock

import pytest
import torch
from sampling_machine import Machine, request

from moesaic.core.errors import BrokenModel
from moesaic.engine.batcher import Batcher
from moesaic.engine.request import Request
from moesaic.engine.sampling.sampler import Sampler
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.engine.sampling.sampling_state import SamplingState
from moesaic.machines.captured.step_ending import Ending
from moesaic.machines.real.forward_pass import GREEDY as GREEDY_ROW
from moesaic.machines.real.forward_pass import RowSampling

GREEDY = SamplingParams(max_tokens=6, temperature=0.0)


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
        SamplingParams(max_tokens=6, temperature=1.0, seed=1, presence_penalty=0.5),
        SamplingParams(max_tokens=6, temperature=1.0, seed=1, logprobs=2),
        SamplingParams(max_tokens=6, temperature=0.0, logprobs=0),
        SamplingParams(max_tokens=6, temperature=0.0, min_tokens=3),
        SamplingParams(max_tokens=6, temperature=0.0, repetition_penalty=1.5),
        SamplingParams(max_tokens=6, temperature=0.0, logit_bias={4: 2.0}),
    ],
)
def test_requests_that_need_logits_get_them(other: SamplingParams) -> None:
    (got, asked), (want, _) = generated(True, GREEDY, other), generated(False, GREEDY, other)
    assert not asked[1]  # the first step has tokens of the first prompt only
    for mine, others in zip(got, want, strict=True):
        assert mine.sampling.seen == others.sampling.seen


@pytest.mark.parametrize(
    "filters",
    [{}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 50, "top_p": 0.9, "min_p": 0.1}],
)
def test_a_seed_leads_to_the_same_text_with_host_and_machine_sampling(
    filters: dict[str, float],
) -> None:
    """Beside a greedy request and a prompt in pieces: one number is used per token, not per step
    or question."""
    drawing = SamplingParams(max_tokens=6, temperature=0.8, seed=4, **filters)  # type: ignore[arg-type]
    batch = drawing, replace(GREEDY, seed=1), replace(drawing, seed=5)
    (got, asked), (want, _) = generated(True, *batch), generated(False, *batch)
    assert all(asked)
    for mine, others in zip(got, want, strict=True):
        assert mine.sampling.seen == others.sampling.seen
        assert mine.sampling.take_number() == others.sampling.take_number()
    assert got[0].sampling.seen[9:] != array("q", range(10, 16))  # drawn, not the best


def test_a_row_that_meets_nan_takes_no_number_from_the_others() -> None:
    rows = [SamplingState.start(SamplingParams(seed=seed), [1]) for seed in (1, 2)]
    number = rows[0].next_number()
    with pytest.raises(BrokenModel):
        Sampler().sample(torch.tensor([3, -1]), rows)
    assert rows[0].next_number() == number
    assert [each.token for each in Sampler().sample(torch.tensor([3]), rows[:1])] == [3]
    assert rows[0].next_number() != number


def test_a_step_ends_with_what_its_rows_need() -> None:
    drawing = RowSampling(0.5, 0.7, 0, 0.9)
    assert Ending.of(None) is Ending.LOGITS
    assert Ending.of([GREEDY_ROW, GREEDY_ROW]) is Ending.GREEDY
    assert Ending.of([GREEDY_ROW, drawing]) is Ending.SAMPLED


def test_tokens_are_refused_to_a_row_that_needs_logits() -> None:
    row = SamplingState.start(SamplingParams(temperature=1.0, logprobs=0), [1])
    with pytest.raises(AssertionError, match="needs its logits"):
        Sampler().sample(torch.tensor([3]), [row])
