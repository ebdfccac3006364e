"""Self-speculative decoding: the text is the full model's, whatever is drafted."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from small_llms import MACHINES, greedy, llm, prompts

import stock
from made_up import pairs_first
from moesaic import LLM, SamplingParams
from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.runner import Runner
from moesaic.machines.real.forward_pass import ForwardPass

NAME, TOP_K, LAYERS = "olmoe", 5, 2
TOKENS = 12
DRAWN = SamplingParams(max_tokens=TOKENS, temperature=0.9, top_k=20, seed=11, logprobs=3)
PENALISED = SamplingParams(max_tokens=TOKENS, temperature=0.0, repetition_penalty=1.3, min_tokens=5)


def said(machine: str = "cpu", params: SamplingParams | None = None, **options: Any) -> Any:
    with llm(stock.saved(NAME).folder, machine, dtype="fp32", **options) as model:
        texts = model.generate(prompts(), params or greedy(TOKENS))
        return [(list(t.tokens), t.finish_reason) for t in texts], texts, model.stats()


DRAFTED = list(product(MACHINES, [1, 3, 16], [greedy(TOKENS), DRAWN, PENALISED]))


@pytest.mark.parametrize(("machine", "draft", "params"), pairs_first(DRAFTED))
def test_the_text_is_the_full_models(machine: str, draft: int, params: SamplingParams) -> None:
    """Token for token, in batches that mix prompts, drafts and checks; the seed means the same."""
    whole, _, _ = said(machine, params)
    ours, _, stats = said(machine, params, gate=f"self-speculative:draft={draft},k=2")
    assert ours == whole
    assert stats.generated_tokens == sum(len(tokens) for tokens, _ in whole)
    assert 0 < stats.gate.acceptance < 1, "the comparison would say little"


@pytest.mark.parametrize("name", ["gpt-oss", "qwen3-next"])
def test_drafts_of_a_model_that_keeps_only_the_last_tokens(name: str) -> None:
    """Longer than its buffers: what drafts pushed out of a window, or made of a state, is there
    again for the check."""
    small: dict[str, Any] = {
        "max_step_tokens": 24,
        "max_sequences": 1,
        "max_model_len": 128,
        "dtype": "fp32",
    }
    said = []
    for gate in ({}, {"gate": "self-speculative:draft=16,k=1"}):
        with llm(stock.saved(name).folder, **small, **gate) as model:
            said.append(list(model.generate(prompts((20,)), greedy(100))[0].tokens))
            acceptance = model.stats().gate.acceptance
    assert said[0] == said[1]
    assert len(said[0]) == 100
    assert acceptance is not None
    assert 0 < acceptance < 1, "the comparison would say little"


def test_logprobs_are_the_full_models() -> None:
    whole, ours = said(params=DRAWN)[1], said(params=DRAWN, gate="self-speculative:k=1")[1]
    for one, other in zip(whole, ours, strict=True):
        for expected, found in zip(one.logprobs, other.logprobs, strict=True):
            assert found.token == expected.token
            assert found.logprob == pytest.approx(expected.logprob, abs=1e-4)


def watched(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], int, int]]:
    """Tokens, attempt and entries in the KV cache before, of every pass of a single sequence."""
    passes: list[tuple[list[int], int, int]] = []
    step = runner.step

    def listening(work: ForwardPass) -> torch.Tensor:
        (one,) = work.pieces
        passes.append((list(one.tokens), one.attempt, runner.cache.length(one.slot)))
        return step(work)

    monkeypatch.setattr(runner, "step", listening)
    return passes


def test_passes_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts, then one check of the last token and all drafts at their positions; the next round
    begins behind what stood, over the entries of rejected drafts, and no check goes beyond the
    request's limit."""
    prompt = prompts()[3]
    room: dict[str, Any] = {"max_step_tokens": 32, "dtype": "fp32"}  # for the checks of all
    with llm(stock.saved(NAME).folder, gate="self-speculative:draft=3,k=1", **room) as model:
        passes = watched(model.model.runner, monkeypatch)
        (text,) = model.generate([prompt], greedy(TOKENS))
        stats = model.stats().gate
    tokens, at = list(text.tokens), 1  # the prompt's pass gave the first
    rounds = iter(passes[1:])
    drafted = stood = checks = 0
    while at < TOKENS:
        base, drafts = len(prompt) + at - 1, min(3, TOKENS - at - 1)
        inputs = []  # of the drafts: the last token, then drafts
        for number in range(drafts):
            given, attempt, length = next(rounds)
            assert (len(given), attempt, length) == (1, 0, base + number)
            inputs += given
        given, attempt, length = next(rounds)
        assert (len(given), attempt, length) == (drafts + 1, 1, base)
        assert given[0] == tokens[at - 1]
        assert given[:drafts] == inputs
        right = 0
        while right < drafts and given[1 + right] == tokens[at + right]:
            right += 1
        drafted, stood, checks = drafted + drafts, stood + right + 1, checks + 1
        at += right + 1
    assert next(rounds, None) is None
    assert at == TOKENS
    assert stats.acceptance == (stood - checks) / drafted
    assert stats.tokens_per_check == stood / checks
    assert 0 < stats.acceptance < 1, "without rejected drafts nothing stays behind"


@pytest.mark.parametrize(("step_tokens", "longest"), [(12, 12), (13, 12), (7, 6), (5, 3)])
def test_a_step_has_room_for_the_checks_of_all(
    monkeypatch: pytest.MonkeyPatch, step_tokens: int, longest: int
) -> None:
    """Three sequences, each with its drafts and the token before them, and no more tokens than a
    step may have: the memory plan and a GPU's buffers are made for those."""
    whole = Runner.step
    sizes: list[int] = []

    def step(self: Runner, work: ForwardPass) -> torch.Tensor:
        if not any(each.prompt for each in work.pieces):
            sizes.append(len(work.numbers))
        return whole(self, work)

    monkeypatch.setattr(Runner, "step", step)
    together = [[number] for number in range(3)]  # whose checks are in the same steps
    options: dict[str, Any] = {"max_step_tokens": step_tokens, "dtype": "fp32"}
    with llm(stock.saved(NAME).folder, gate="self-speculative:draft=16,k=1", **options) as model:
        model.generate(together, greedy(TOKENS))
    assert max(sizes) == longest


def test_reads_are_counted_once_per_pass() -> None:
    with llm(stock.saved(NAME).folder, dtype="fp32") as model:
        model.generate(prompts()[:1], greedy(TOKENS))
        whole = model.stats().gate
        spec = model.model.spec
    assert whole.reads_per_token == spec.top_k * spec.num_moe_layers
    assert whole.reads_saved == 0
    assert whole.reads_per_token is not None
    with llm(stock.saved(NAME).folder, dtype="fp32", gate="self-speculative:k=1") as model:
        model.generate(prompts()[:1], greedy(TOKENS))
        ours = model.stats().gate
    assert ours.reads_per_token is not None
    assert ours.reads_saved == pytest.approx(1 - ours.reads_per_token / whole.reads_per_token)


def test_text_that_is_only_read_is_the_full_models() -> None:
    from moesaic.engine.gated_reading import read

    with llm(stock.saved(NAME).folder, dtype="fp32", gate="self-speculative") as model:
        ours = read(model.model.runner, 0, prompts()[0])
    with llm(stock.saved(NAME).folder, dtype="fp32") as model:
        assert torch.equal(ours, read(model.model.runner, 0, prompts()[0]))


def test_with_all_experts_nothing_is_drafted() -> None:
    assert said(gate=f"self-speculative:k={TOP_K}")[2].gate.acceptance is None


@pytest.mark.parametrize("gate", ["self-speculative:draft=0", "self-speculative:k=6"])
def test_impossible_drafts_are_refused(gate: str) -> None:
    with pytest.raises(ImpossibleSetting):
        LLM(stock.saved(NAME).folder, gate=gate)


def test_recordings_are_refused(tmp_path: Any) -> None:
    with pytest.raises(ImpossibleSetting, match="record with gate full"):
        LLM(stock.saved(NAME).folder, gate="self-speculative", record=tmp_path / "a.moet")
