"""Does a gate that runs tokens again lead to the text that it must, and nothing else?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gated_text import ByHand, Halves, two_models
from numpy.typing import NDArray
from small_llms import MACHINES, greedy, llm, prompts

import stock
from made_up import in_turns
from moesaic import LLM, SamplingParams
from moesaic.core.confidence import Confidence
from moesaic.core.errors import UnknownName
from moesaic.engine import batcher as batching
from moesaic.policies.gate.base import Gate, GateStep
from moesaic.workloads.documents import documents
from moesaic.workloads.source import open_trace

TOKENS = 10
FAMILIES = ("olmoe", "qwen3-moe", "deepseek-v2", "glm-4.5", "gpt-oss", "qwen3-next")
SURE_ABOVE = 0.1
DRAWN = SamplingParams(max_tokens=TOKENS, temperature=0.9, top_k=20, seed=11, logprobs=3)


def gated(name: str, machine: str = "cpu", **options: Any) -> LLM:
    model = llm(stock.saved(name).folder, machine, dtype="fp32", **options)
    model.model.runner.gate = Halves(model.model.spec.top_k, SURE_ABOVE)
    return model


def by_hand(name: str, params: SamplingParams) -> list[ByHand]:
    return [two_models(name).write(prompt, params, SURE_ABOVE) for prompt in prompts()]


TAKING_TURNS = in_turns(FAMILIES, list(MACHINES), greedy(TOKENS))
TAKING_TURNS += in_turns(("olmoe", "deepseek-v2"), ("cpu", "emulated"), DRAWN)


@pytest.mark.parametrize(("name", "machine", "params"), TAKING_TURNS)
def test_text_is_that_of_two_models_taking_turns(
    name: str, machine: str, params: SamplingParams
) -> None:
    expected = by_hand(name, params)
    with gated(name, machine) as model:
        said = model.generate(prompts(), params)
        stats = model.stats()
    for one, right in zip(said, expected, strict=True):
        assert list(one.tokens) == [sampled.token for sampled in right.tokens]
        if params.logprobs:
            assert one.logprobs is not None
            for got, wanted in zip(one.logprobs, right.tokens, strict=True):
                assert got.logprob == pytest.approx(wanted.logprob, abs=1e-4)
                ranked = [other.token for other in got.alternatives]
                assert ranked == [other.token for other in wanted.alternatives]
    reruns, decoded = sum(one.reruns for one in expected), (TOKENS - 1) * len(expected)
    assert decoded / 5 < reruns < decoded * 4 / 5, "the comparison would say little"
    assert stats.rerun_tokens == reruns
    assert stats.generated_tokens == TOKENS * len(expected)
    assert stats.prompt_tokens == sum(map(len, prompts()))
    others = stock_texts(name, params)
    assert [list(one.tokens) for one in said] != others, "the gate changes something"


def stock_texts(name: str, params: SamplingParams) -> list[list[int]]:
    with llm(stock.saved(name).folder, dtype="fp32") as model:
        return [list(one.tokens) for one in model.generate(prompts(), params)]


def test_a_recording_has_the_passes_that_stood(tmp_path: Path) -> None:
    name, path = "olmoe", tmp_path / "trace.moet"
    expected = by_hand(name, greedy(TOKENS))
    with gated(name, "emulated", record=path) as model:
        model.generate(prompts(), greedy(TOKENS))
    recorded = {len(document): document for document in documents(open_trace(path))}
    assert open_trace(path).header.has_confidence
    for right, prompt in zip(expected, prompts(), strict=True):
        document = recorded[len(right.counts)]
        assert document.positions.tolist() == list(range(len(right.counts)))
        assert document.counts is not None
        assert document.counts.tolist() == right.counts
        assert document.top is not None
        assert document.top[len(prompt) - 1 :] == pytest.approx(right.tops, abs=1e-5)
        assert document.weights is not None
        used = np.arange(5) < document.counts[:, None, None]
        assert ((document.weights != 0) == np.broadcast_to(used, document.weights.shape)).all()
        for column in (document.margin, document.entropy):
            assert column is not None
            assert np.array_equal(np.isnan(column), np.isnan(document.top))
            assert column[-1] > 0


class FirstTwice(Halves):
    """Rejects every token of the first sequence of a step, whatever the model says."""

    def judge(self, step: GateStep, confidence: Confidence) -> NDArray[np.bool_]:
        return np.array([number == 0 for number in range(len(step.tokens))])


def test_no_request_waits_for_anothers_second_attempt() -> None:
    with gated("olmoe") as model:
        model.model.runner.gate = FirstTwice(5, 0.0)
        first, other = (model.model.input_processor.request([n], greedy(20)) for n in (1, 2))
        batcher = model.model.batcher
        batcher.submit(first)
        batcher.submit(other)
        batcher.step()  # both prompts
        for turn in range(8):
            updates = [request for request, _ in batcher.step()]
            # In every second step `first` has all experts, so that `other` is asked about.
            assert updates == ([other] if turn % 2 == 0 else [first])
        assert len(first.sampled) == 1 + 4


class Alternate(Gate):
    """Half of the experts, and never a second attempt."""

    def experts_per_token(self, step: GateStep) -> NDArray[np.int64]:
        return np.full(sum(step.tokens), 2)


def test_fewer_experts_without_second_attempts_are_the_narrow_model() -> None:
    """Also for prompts; the confidence is not computed."""
    with llm(stock.saved("olmoe").folder, dtype="fp32", experts_per_token=2) as model:
        expected = [list(one.tokens) for one in model.generate(prompts(), greedy(TOKENS))]
    with llm(stock.saved("olmoe").folder, dtype="fp32") as model:
        model.model.runner.gate = Alternate(5)
        said = model.generate(prompts(), greedy(TOKENS))
        assert model.stats().rerun_tokens == 0
    assert [list(one.tokens) for one in said] == expected


def test_the_whole_model_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> Confidence:
        raise AssertionError("the confidence is not needed")

    monkeypatch.setattr(batching, "confidence_of", never)
    with llm(stock.saved("olmoe").folder, gate="full") as model:
        model.generate(prompts(), greedy(TOKENS))
        assert model.stats().rerun_tokens == 0


def test_a_gate_that_never_accepts_is_noticed() -> None:
    class Stubborn(Halves):
        def experts_per_token(self, step: GateStep) -> NDArray[np.int64]:
            return np.full(sum(step.tokens), 2)

    with gated("olmoe") as model:
        model.model.runner.gate = Stubborn(5, 2.0)
        with pytest.raises(AssertionError, match="Stubborn rejects a token again and again"):
            model.generate([[1, 2]], greedy(3))


def test_an_unknown_gate_is_refused() -> None:
    with pytest.raises(UnknownName, match="full"):
        llm(stock.saved("olmoe").folder, gate="ful")
