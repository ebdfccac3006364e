"""Do penalties, biases and stop tokens do what other engines' do?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from sampling_examples import EVERYTHING, GREEDY, draws, logits_of
from small_llms import greedy

from moesaic.core.errors import BrokenModel, ImpossibleSetting
from moesaic.engine.llm import LLM
from moesaic.engine.sampling.sampler import Sampler
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.engine.sampling.sampling_state import SamplingState

LOGITS = torch.tensor([[5.0, 4.0, 3.0, 2.0]])


def tokens(count: int, prompt: list[int], **fields: Any) -> list[int]:
    """Greedy, under logits that never change."""
    row = SamplingState.start(SamplingParams(temperature=0.0, **fields), prompt)
    for _ in range(count):
        row.append(Sampler().sample(LOGITS, [row])[0].token)
    return row.seen[len(prompt) :].tolist()


def test_presence_counts_once_and_frequency_every_time() -> None:
    assert tokens(5, [0], presence_penalty=1.5) == [0, 1, 0, 0, 0]  # then both have it
    assert tokens(5, [0], frequency_penalty=0.6) == [0, 0, 1, 0, 1]
    assert tokens(3, [0, 0, 1], frequency_penalty=2.0) == [0, 1, 0], "the prompt does not count"
    assert tokens(3, [0], frequency_penalty=-1.0, logit_bias={1: 1.5}) == [1, 1, 1]


def test_a_bias_is_added() -> None:
    assert tokens(2, [0], logit_bias={3: 3.5}) == [3, 3]
    assert tokens(2, [0], logit_bias={0: -100.0, 1: -1.5}) == [2, 2]
    sampled = Sampler().sample(
        LOGITS, [SamplingState.start(SamplingParams(logit_bias={2: 100}, seed=1), [0])]
    )
    assert sampled[0].token == 2


def test_neighbours_in_a_batch_are_left_alone() -> None:
    logits = logits_of(5, 50, 3)
    odd = SamplingParams(temperature=0.0, presence_penalty=2.0, logit_bias={7: 100.0})
    rows = [SamplingState.start(params, [1, 2]) for params in (GREEDY, odd, GREEDY)]
    chosen = [one.token for one in Sampler().sample(logits, rows)]
    assert chosen[1] == 7
    assert [chosen[0], chosen[2]] == logits[[0, 2]].argmax(-1).tolist()


def test_a_stop_token_must_wait_for_min_tokens() -> None:
    assert tokens(2, [0], stop_token_ids=[0]) == [0, 0]
    assert tokens(3, [0], stop_token_ids=[0], min_tokens=2) == [1, 1, 0]


def test_a_stop_token_ends_an_answer_even_where_the_models_end_does_not() -> None:
    from chat_models import talking

    with LLM(talking().folder, dtype="fp32", threads=1) as model:
        (whole,) = model.generate("The router", greedy(8, ignore_eos=True))
        stop = whole.tokens[4]
        first = whole.tokens.index(stop)
        (cut,) = model.generate("The router", greedy(8, ignore_eos=True, stop_token_ids=[stop]))
        assert cut.tokens == whole.tokens[: first + 1]
        assert cut.finish_reason == "stop"
        unknown: dict[str, Any] = {"stop_token_ids": [512], "logit_bias": {512: 1.0}}
        for name, value in unknown.items():
            with pytest.raises(ImpossibleSetting, match=f"{name} has token id 512"):
                model.generate("The router", SamplingParams(**{name: value}))
        everything = SamplingParams(stop_token_ids=range(512), min_tokens=1)
        with pytest.raises(ImpossibleSetting, match="are all tokens"):
            model.generate("The router", everything)


@pytest.mark.parametrize(
    ("name", "value", "possible"),
    [
        ("presence_penalty", 2.1, "between -2 and 2"),
        ("frequency_penalty", float("nan"), "between -2 and 2"),
        ("logit_bias", 3, "must map token ids"),
        ("logit_bias", {1: 101.0}, "between -100 and 100"),
        ("logit_bias", {1: float("nan")}, "between -100 and 100"),
        ("logit_bias", {-1: 1.0}, "whole numbers from 0"),
        ("logit_bias", {"a": 1.0}, "whole numbers from 0"),
        ("stop_token_ids", [1, -1], "whole numbers from 0"),
        ("stop_token_ids", [True], "whole numbers from 0"),
        ("stop_token_ids", "12", "a list of token ids"),
        ("stop_token_ids", None, "a list of token ids"),
    ],
)
def test_a_slip_is_refused(name: str, value: Any, possible: str) -> None:
    with pytest.raises(ImpossibleSetting, match=possible) as caught:
        SamplingParams(**{name: value})
    assert name in str(caught.value)


def test_params_stay_hashable() -> None:
    params = SamplingParams(logit_bias={3: 1, 1: 2}, stop_token_ids=[5, 2, 5])
    assert params.logit_bias == ((1, 2.0), (3, 1.0))
    assert params.stop_token_ids == (2, 5)
    assert hash(params) == hash(SamplingParams(logit_bias={1: 2, 3: 1}, stop_token_ids=(2, 5)))


# Is nothing chosen that may not be: by a broken model, a ruled-out token, an early end?


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
