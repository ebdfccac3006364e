"""Big-little decoding in the engine: Algorithm 1 step by step, its bounds, and what it leaves of
the passes that it evicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from gated_text import two_models
from small_llms import MACHINES, greedy, llm, prompts

import stock
from made_up import in_turns, policy_combinations, values_first
from moesaic import LLM, SamplingParams
from moesaic.core.confidence import Confidence
from moesaic.core.errors import ImpossibleSetting
from moesaic.engine import batcher as batching
from moesaic.engine.gate_stats import GateCounter, predicted_speedup
from moesaic.engine.gating import confidence_of, rejected
from moesaic.engine.runner import Runner
from moesaic.machines.real.forward_pass import ForwardPass
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.policies.cache import caches
from moesaic.policies.gate.base import Full, GateStep
from moesaic.policies.gate.big_little import BigLittle
from moesaic.policies.prefetch import prefetches

NAME, TOP_K = "olmoe", 5
TOKENS = 10
DRAWN = SamplingParams(max_tokens=TOKENS, temperature=0.9, top_k=20, seed=11, logprobs=3)


def texts(machine: str = "cpu", params: SamplingParams | None = None, **options: Any) -> Any:
    with llm(stock.saved(NAME).folder, machine, dtype="fp32", **options) as model:
        said = model.generate(prompts(), params or greedy(TOKENS))
        return [list(one.tokens) for one in said], [one.logprobs for one in said], model.stats()


@dataclass
class Watched:
    """What the runner was given to do, pass by pass."""

    passes: list[list[tuple[int, int, int, int]]] = field(default_factory=list)


def watch(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Per sequence of every pass: slot, token, attempt, tokens in the KV cache before it."""
    watched, step = Watched(), runner.step

    def listening(work: ForwardPass) -> torch.Tensor:
        watched.passes.append(
            [(i.slot, i.tokens[-1], i.attempt, runner.cache.length(i.slot)) for i in work.pieces]
        )
        return step(work)

    monkeypatch.setattr(runner, "step", listening)
    return watched


def scripted(monkeypatch: pytest.MonkeyPatch, tops: Sequence[Sequence[float]]) -> None:
    """The model is as sure as the script says, pass by pass and sequence by sequence."""
    script = iter(tops)

    def confidence(logits: torch.Tensor) -> Confidence:
        top = np.array(next(script), dtype=np.float32)
        assert len(top) == len(logits)
        return Confidence(top, top, -np.log(top))

    monkeypatch.setattr(batching, "confidence_of", confidence)


def test_algorithm_1_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept where the top probability is above gamma; else evicted, and run at the same position
    with all experts, whose token stands however unsure they are."""
    with llm(stock.saved(NAME).folder, dtype="fp32", gate="big-little:gamma=0.6") as model:
        watched = watch(model.model.runner, monkeypatch)
        prompt = prompts()[0]
        scripted(monkeypatch, [[0.1], [0.7], [0.6], [0.0001], [0.61], [0.2], [0.3]])
        (said,) = model.generate([prompt], greedy(5))
        stats = model.stats()
    written, length = said.tokens, len(prompt)
    assert watched.passes == [
        [(0, prompt[-1], 0, 0)],  # the prompt has all experts: nothing to judge
        [(0, written[0], 0, length)],  # little, 0.7: kept
        [(0, written[1], 0, length + 1)],  # little, 0.6: not above gamma
        [(0, written[1], 1, length + 1)],  # big, at the same position: kept
        [(0, written[2], 0, length + 2)],  # little, 0.61: kept
        [(0, written[3], 0, length + 3)],  # little, 0.2: evicted
        [(0, written[3], 1, length + 3)],  # big
    ]
    assert stats.rerun_tokens == 2
    assert stats.gate.fallback_ratio == 2 / 4
    expected = by_hand(prompt, [False, True, False, True])
    assert list(written) == expected


def by_hand(prompt: list[int], big: Sequence[bool]) -> list[int]:
    """Greedy text of two plain models on one KV cache, where it is known which one speaks."""
    models = two_models(NAME)
    memory = BlockCache(models.whole.architecture.spec, 1, 128, torch.float32)
    logits = models._feed(models.whole, prompt, memory)
    written = [int(logits.argmax())]
    for whole in big:
        model = models.whole if whole else models.half
        logits = models._feed(model, written[-1:], memory)
        written.append(int(logits.argmax()))
    return written


def test_sequences_fall_back_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three prompts of one token; only the second falls back, once: it is one token behind, and
    no other has waited."""
    with llm(stock.saved(NAME).folder, dtype="fp32", gate="big-little:gamma=0.5") as model:
        runner = model.model.runner
        watched = watch(runner, monkeypatch)
        unsure_twice = [0.9, 0.1, 0.9]  # with all experts its token stands all the same
        scripted(monkeypatch, [[0.1] * 3, [0.9, 0.5, 0.9], unsure_twice, [0.9] * 3, [0.9]])
        model.generate([[1], [2], [3]], greedy(4))
    shape = [[(slot, attempt, at) for slot, _, attempt, at in each] for each in watched.passes]
    assert shape == [
        [(0, 0, 0), (1, 0, 0), (2, 0, 0)],
        [(0, 0, 1), (1, 0, 1), (2, 0, 1)],
        [(0, 0, 2), (1, 1, 1), (2, 0, 2)],
        [(0, 0, 3), (1, 0, 2), (2, 0, 3)],
        [(1, 0, 3)],
    ]


BOUNDS = in_turns([*MACHINES], (None, DRAWN), "top-probability")
BOUNDS += [pytest.param("cpu", None, "margin"), pytest.param("emulated", DRAWN, "entropy")]


@pytest.mark.parametrize(("machine", "params", "confidence"), BOUNDS)
def test_the_bounds_of_gamma_are_the_whole_and_the_little_model(
    machine: str, params: SamplingParams | None, confidence: str
) -> None:
    whole, little = texts(machine, params), texts(machine, params, gate="little")
    assert whole[0] != little[0], "the comparison would say nothing"
    never = texts(machine, params, gate=f"big-little:gamma=0,confidence={confidence}")
    always = texts(machine, params, gate=f"big-little:gamma=1,confidence={confidence}")
    assert never[0] == little[0]
    assert always[0] == whole[0]
    assert never[2].rerun_tokens == 0
    assert always[2].rerun_tokens == (TOKENS - 1) * len(prompts())
    assert always[2].gate.fallback_ratio == 1.0


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_little_is_the_model_with_k_experts_after_a_whole_prompt(k: int) -> None:
    """One token after the prompt is the whole model's, whatever k."""
    said, _, stats = texts(gate=f"little:k={k}")
    whole = texts()[0]
    assert [one[0] for one in said] == [one[0] for one in whole]
    assert (said == whole) == (k == TOP_K)
    assert stats.gate.name == "little"
    assert stats.gate.fallback_ratio == 0.0


def kv_of(cache: BlockCache, slot: int) -> torch.Tensor:
    """[layers, tokens, numbers]: everything that the cache holds of a sequence."""
    both, rows = (cache.first, cache.second), cache.rows_of(slot, cache.length(slot))
    return torch.cat([each.flatten(1, 2)[:, rows] for each in both], dim=-1)


def kv_after(gate: str, prompt: list[int], tokens: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the KV cache held when the text was finished, and the text."""
    with llm(stock.saved(NAME).folder, dtype="fp32", gate=gate) as model:
        runner, kept = model.model.runner, []
        free = runner.free_slot

        def keep(slot: int) -> None:
            kept.append(kv_of(runner.cache, slot))
            free(slot)

        monkeypatch.setattr(runner, "free_slot", keep)
        (said,) = model.generate([prompt], greedy(tokens))
        return kept[0], said.tokens


@pytest.mark.parametrize("gate", ["little:k=1", "big-little:k=1,gamma=0.9"])
def test_prompts_are_read_by_the_whole_model(gate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces, too, of which the last is a single token: what the KV cache holds of a prompt is
    bit for bit what the whole model leaves there."""
    prompt = prompts((15,))[0]  # 7 + 7 + 1
    whole, _ = kv_after("full", prompt, 1, monkeypatch)
    assert whole.shape[1] == 15
    assert torch.equal(whole, kv_after(gate, prompt, 1, monkeypatch)[0])


def test_evicted_entries_of_the_kv_cache_are_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """If every token falls back, nothing of any little pass is left, and nothing is there twice."""
    prompt = prompts()[0]
    whole, text = kv_after("full", prompt, TOKENS, monkeypatch)
    evicted, same = kv_after("big-little:gamma=1,k=1", prompt, TOKENS, monkeypatch)
    little, _ = kv_after("little:k=1", prompt, TOKENS, monkeypatch)
    assert same == text
    assert torch.equal(evicted, whole)
    assert not torch.equal(little[:, len(prompt) + 1], whole[:, len(prompt) + 1])


# Every cache, and every prefetch policy with each of two schedules.
COMBINED = [
    (schedule, cache, prefetch)
    for schedule, cache, prefetch in policy_combinations()
    if not (caches.load(cache).needs_future or prefetches.load(prefetch).needs_future)
    and (schedule == "best-split" or (schedule == "gpu-only" and cache == "lru"))
    and (cache == "lru" or prefetch in ("none", "impact"))
]


@pytest.mark.parametrize(("schedule", "cache", "prefetch"), values_first(COMBINED))
def test_no_policy_changes_what_is_said(schedule: str, cache: str, prefetch: str) -> None:
    """Every plan of these runs is proved legal while it is made."""
    options: dict[str, Any] = {"schedule": schedule, "cache": cache, "prefetch": prefetch}
    said, _, stats = texts("emulated", gate="big-little:gamma=0.1", **options)
    expected = [two_models(NAME).write(p, greedy(TOKENS), 0.1) for p in prompts()]
    assert said == [[sampled.token for sampled in each.tokens] for each in expected]
    assert stats.rerun_tokens == sum(each.reruns for each in expected) > 0
    assert 0.2 < stats.gate.prefetch_accuracy <= 1.0


def test_gate_statistics_of_a_run() -> None:
    _, _, stats = texts("emulated", gate="big-little:gamma=0.1")
    gate = stats.gate
    assert gate.name == "big-little"
    assert 0 < gate.fallback_ratio < 1
    assert gate.little_s > 0
    assert gate.big_s > 0
    assert gate.little_s + gate.big_s <= stats.step_s
    assert gate.full_from == "big passes"
    assert gate.predicted_speedup > 0
    whole = texts("emulated")[2].gate
    assert whole.name == "full"
    assert whole.fallback_ratio is whole.little_s is whole.predicted_speedup is None


def test_the_papers_equation() -> None:
    """Table II's Qwen MoE: 1.82 x without fallbacks; 0.11 of big passes make it 1.72 x if each
    takes 29 % of a full one."""
    assert predicted_speedup(1.0, 1 / 1.82, 0.29, 0.11) == pytest.approx(1.72, abs=0.005)


def test_times_are_shared_by_tokens_and_leave_prompts_out() -> None:
    counter = GateCounter("big-little")
    counter.add(first=4, again=0, prompt=0, taken_ns=4_000_000_000)
    counter.add(first=3, again=1, prompt=0, taken_ns=8_000_000_000)
    counter.add(first=1, again=1, prompt=20, taken_ns=99_000_000_000)
    stats = counter.stats(0.9, full_s=3.0)
    assert (stats.little_s, stats.big_s) == (4.0 + 6.0, 2.0)
    assert stats.fallback_ratio == 2 / 8
    little, big = 10.0 / 7, 2.0
    assert stats.predicted_speedup == pytest.approx(3.0 / (little + 0.25 * big))
    assert (stats.prefetch_accuracy, stats.full_from) == (0.9, "a run with gate full")


def test_reads_saved_are_said_of_a_text_alone() -> None:
    """Texts that are written together share reads with any gate."""
    for alone, saved in ((True, 0.5), (False, None)):
        counter = GateCounter("little", top_reads=16)
        counter.add(first=2, again=0, prompt=0, taken_ns=1000, reads=16, alone=alone)
        stats = counter.stats()
        assert (stats.reads_per_token, stats.reads_saved) == (8.0, saved)


def test_confidence_is_that_of_the_distribution() -> None:
    """Of one half, a quarter and twice an eighth, and of two tokens alike."""
    rows = torch.tensor([[0.125, 0.5, 0.125, 0.25], [0.5, 0.0, 0.5, 0.0]])
    found = confidence_of(rows.log() + 3.0)
    assert found.top.tolist() == pytest.approx([0.5, 0.5])
    assert found.margin.tolist() == pytest.approx([0.25, 0.0])
    assert found.entropy.tolist() == pytest.approx([1.75 * np.log(2), np.log(2)])


def test_logits_that_are_no_numbers_are_not_run_again() -> None:
    top = np.array([np.nan, 0.1, 0.9], dtype=np.float32)
    judged = rejected(BigLittle(8), GateStep.decode(3), Confidence(top, top, top))
    assert judged.tolist() == [False, True, False]


def test_the_whole_model_is_not_asked_how_many_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switched off, a gate costs nothing, in batches neither."""

    def never(gate: Full, step: GateStep) -> None:
        raise AssertionError("asked")

    with llm(stock.saved(NAME).folder, dtype="fp32") as model:
        monkeypatch.setattr(Full, "experts_per_token", never)
        (said,) = model.generate(prompts()[:1], greedy(3))
    assert len(said.tokens) == 3


def test_nothing_is_wrapped_where_nothing_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switched off, a pass goes to the brain itself."""
    for gate, wrapped in (
        ("full", False),
        ("little", False),
        ("big-little:gamma=0.1", True),
        ("self-speculative", True),
    ):
        with llm(stock.saved(NAME).folder, "emulated", gate=gate) as model:
            model.generate(prompts()[:1], greedy(3))
            assert (model.model.runner.fallback is not None) == wrapped


@pytest.mark.parametrize("gate", ["big-little:k=6", "little:k=6"])
def test_more_experts_than_the_model_uses_are_refused_before_loading(gate: str) -> None:
    with pytest.raises(ImpossibleSetting, match="from 1 to 5, or auto, which is 2 here"):
        LLM(stock.saved(NAME).folder, gate=gate)
    with pytest.raises(ImpossibleSetting, match="from 1 to 3"):
        LLM(stock.saved(NAME).folder, gate="little:k=4", experts_per_token=3)
