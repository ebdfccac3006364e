"""Big-little decoding in the simulator: which passes a run has, and what is counted of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from made_up import policy_combinations, values_first
from moesaic.core.errors import ImpossibleSetting
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.fallback_script import script
from moesaic.lab.simulate.gated_steps import Pass, gated
from moesaic.lab.simulate.result import Result
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import full_token_s, simulate
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.gate import gates
from moesaic.policies.gate.base import Gate
from moesaic.policies.policy_choice import choose
from moesaic.policies.policy_set import PolicySet
from moesaic.workloads.block import join
from moesaic.workloads.source import MemoryTrace, TraceSource
from moesaic.workloads.steps import decode_steps
from moesaic.workloads.synthetic.calibration import default_calibration
from moesaic.workloads.synthetic.generate import TraceShape, synthesize

MODEL = load_model("olmoe-1b-7b")  # top-8
MACHINE = load_machine("rtx4080-i5-12400")
TOKENS, PROFILE, WARMUP = 24, 32, 4


@cache
def trace(tokens: int = 900, tops: Any = None, counts: int | None = None) -> TraceSource:
    """Without confidence, or as sure of every token as `tops(position)` says."""
    calibration = default_calibration(MODEL.name, MODEL.num_experts)
    made = synthesize(calibration, TraceShape.of(MODEL), tokens, seed=3, ranks=16)
    block, header = join(list(made.blocks())), made.header
    if tops is not None:
        top = np.array([tops(n) for n in range(tokens)], dtype=np.float32)
        block = replace(block, top=top, margin=top, entropy=-np.log(top))
        header = replace(header, has_confidence=True)
    if counts is not None:
        block = replace(block, counts=np.full(tokens, counts, dtype=np.uint16))
        header = replace(header, has_counts=True)
    return MemoryTrace(header, [block])


def run(source: TraceSource, gate: str, full_s: float | None = None, **options: Any) -> Result:
    return simulate(settings(gate, **options), source, full_s=full_s)


def settings(gate: str, **options: Any) -> Settings:
    chosen = {k: options.pop(k) for k in ("schedule", "cache", "prefetch") if k in options}
    usual: dict[str, Any] = {"tokens": TOKENS, "warmup": WARMUP, "profile_tokens": PROFILE}
    policies = PolicySet.of(gate=gate, **chosen)
    return Settings(MODEL, MACHINE, policies=policies, checked=True, **(usual | options))


def make(text: str) -> Gate:
    return choose(gates, text).create(gates, MODEL.top_k)


def passes(batch: int, steps: int, falls_back: Any, gate: str = "big-little") -> list[Pass]:
    return list(gated(decode_steps(trace(), batch, steps), make(gate), falls_back))


def test_a_rejected_token_runs_again_in_the_next_pass() -> None:
    found = passes(1, 4, lambda sequence, token: token in (1, 3))
    assert [(each.number, each.again, each.stands, each.rows) for each in found] == [
        (0, 0, 1, (-1,)),
        (1, 0, 0, (-1,)),
        (1, 1, 1, (0,)),
        (2, 0, 1, (-1,)),
        (3, 0, 0, (-1,)),
        (3, 1, 1, (0,)),
    ]
    for each in found:
        used = None if each.again else [4]
        assert (None if each.routed.counts is None else each.routed.counts.tolist()) == used
    little, big = found[1].routed, found[2].routed
    assert np.array_equal(little.ranked, big.ranked), "the same token"
    assert np.array_equal(little.experts[..., :4], big.experts[..., :4])
    assert (little.experts[..., 4:] == -1).all()
    assert (big.experts >= 0).all()


def test_sequences_of_a_batch_do_not_wait_for_each_other() -> None:
    """The second falls back at every token and gets half as far; the run ends with the other."""
    found = passes(2, 6, lambda sequence, token: sequence == 1)
    assert [each.number for each in found] == [0, 1, 2, 3, 4, 5]
    assert [each.rows for each in found] == [(-1, -1), (-1, 1)] * 3
    assert [each.stands for each in found] == [1, 2] * 3
    steps = list(decode_steps(trace(), 2, 6))
    for number, each in enumerate(found):
        of_second = steps[number // 2]
        assert np.array_equal(each.routed.ranked[:, 0], steps[number].ranked[:, 0])
        assert np.array_equal(each.routed.ranked[:, 1], of_second.ranked[:, 1])
        contexts = [s.step.sequences[0].context for s in (steps[number], of_second)]
        assert [s.context for s in each.routed.step.sequences] == contexts


def test_a_trace_of_the_little_model_has_what_the_big_one_would_use() -> None:
    source = trace(counts=4)
    found = list(gated(decode_steps(source, 1, 2), make("big-little"), lambda s, t: True))
    whole = list(decode_steps(trace(), 1, 2))
    assert np.array_equal(found[1].routed.experts, whole[0].experts)
    assert (found[1].routed.weights > 0).all()


def _combinations() -> list[tuple[str, str, str]]:
    """All but most of those with a solver's schedule, which takes seconds for each."""
    few = {("pinned", "none"), ("two-speed", "impact")}
    return [c for c in policy_combinations() if c[0] != "tri-optimal" or c[1:] in few]


@pytest.mark.parametrize(("schedule", "cache", "prefetch"), values_first(_combinations()))
def test_every_policy_takes_part(schedule: str, cache: str, prefetch: str) -> None:
    """Every plan is proved legal."""
    chosen: dict[str, Any] = {"schedule": schedule, "cache": cache, "prefetch": prefetch}
    options: dict[str, Any] = {"tokens": 6, "warmup": 1, "fallback_ratio": 0.5, "batch": 2}
    result = run(trace(), "big-little", **chosen, **options)
    assert result.gate.fallback_ratio == pytest.approx(0.5, abs=0.2)
    assert result.gate.prefetch_accuracy == pytest.approx(0.8, abs=0.1)


def test_gamma_is_compared_with_the_confidence_of_the_trace() -> None:
    source = trace(tops=lambda n: 0.9 if n % 4 else 0.3)
    result = run(source, "big-little:gamma=0.5")
    assert result.gate.fallback_ratio == 1 / 4
    assert (result.tokens, len(result.latencies_s)) == (TOKENS, TOKENS + TOKENS // 4)
    assert run(source, "big-little:gamma=0.2").gate.fallback_ratio == 0.0
    unknown = trace(tops=lambda n: np.nan)
    assert run(unknown, "big-little").gate.fallback_ratio == 0.0, "what is not known stands"


def test_what_ran_again_in_the_warm_up_is_not_measured() -> None:
    """Only the warm-up's tokens are doubtful: the measured part has no accuracy to speak of."""
    source = trace(tops=lambda n: 0.3 if n < PROFILE + WARMUP else 0.9)
    gate = run(source, "big-little:gamma=0.5").gate
    assert (gate.fallback_ratio, gate.big_s, gate.prefetch_accuracy) == (0.0, 0.0, None)


def test_other_seeds_send_other_tokens_back() -> None:
    several = [[script(0.3, seed)(0, n) for n in range(50)] for seed in range(2)]
    assert several[0] != several[1]


def test_the_bounds_of_gamma() -> None:
    source = trace(tops=lambda n: 0.5)
    never, little = run(source, "big-little:gamma=0"), run(source, "little")
    assert never.latencies_s == little.latencies_s
    always = run(source, "big-little:gamma=1")
    assert len(always.latencies_s) == 2 * TOKENS
    assert always.tokens == TOKENS


def test_times_and_the_papers_equation() -> None:
    """At batch 1 the equation is what happens."""
    source = trace()
    chosen: dict[str, Any] = {"schedule": "gpu-only", "cache": "lru", "prefetch": "none"}
    asked = settings("big-little", fallback_ratio=0.25, **chosen)
    full_s = full_token_s(asked, source)
    whole = run(source, "full", **chosen)
    assert full_s == pytest.approx(whole.elapsed_s / TOKENS)
    result = run(source, "big-little", full_s, fallback_ratio=0.25, **chosen)
    gate = result.gate
    assert gate.little_s is not None
    assert gate.big_s is not None
    assert gate.measured_speedup is not None
    assert gate.little_s + gate.big_s == pytest.approx(result.elapsed_s)
    assert gate.measured_speedup == pytest.approx(whole.elapsed_s / result.elapsed_s)
    assert gate.predicted_speedup == pytest.approx(gate.measured_speedup)
    assert result.mean_s == pytest.approx(result.elapsed_s / TOKENS)
    assert result.as_dict()["gate"]["full_from"] == "a run with gate full"
    assert gate.measured_speedup > 1.2


def test_knowing_what_the_evicted_pass_wanted_saves_time() -> None:
    """With a link that has idle time. Wrong wants help less."""
    slow = replace(MACHINE, gpu=replace(MACHINE.gpu, layer_overhead_us=3000.0))
    source = trace()
    times: dict[float, float] = {}
    for accuracy in (0.01, 0.5, 1.0):
        asked = settings("big-little", schedule="gpu-only", cache="lru", prefetch="none")
        asked = replace(asked, machine=slow, fallback_ratio=1.0, prefetch_accuracy=accuracy)
        result = simulate(asked, source)
        assert result.gate.big_s is not None
        times[accuracy] = result.gate.big_s
        assert result.gate.prefetch_accuracy == pytest.approx(accuracy, abs=0.05)
    assert times[1.0] < times[0.5] < times[0.01]


def test_a_big_pass_bound_to_the_evicted_one_is_prefetched_without_mistakes() -> None:
    """The same time as if all wants had happened to be right, whichever weights it takes."""
    options: dict[str, Any] = {"schedule": "gpu-only", "cache": "lru", "fallback_ratio": 0.5}
    free = run(trace(), "big-little", prefetch_accuracy=1.0, **options)
    for reuse in ("experts", "routing"):
        bound = run(trace(), f"big-little:reuse={reuse}", **options)
        assert bound.gate.prefetch_accuracy == 1.0
        assert bound.latencies_s == free.latencies_s
    assert free.latencies_s != run(trace(), "big-little", **options).latencies_s


def test_prefill_is_that_of_the_whole_model() -> None:
    for gate, ratio in (("little", None), ("big-little", 0.5)):
        both = [
            run(trace(), each, phase="prefill", tokens=64, prompts=2, warmup=1, fallback_ratio=some)
            for each, some in (("full", None), (gate, ratio))
        ]
        assert both[0].latencies_s == both[1].latencies_s
        assert both[1].gate.fallback_ratio is None


@pytest.mark.parametrize("ratio", [0.0, 0.11, 0.21, 0.5, 1.0])
def test_a_script_has_the_share_that_was_asked_for_everywhere(ratio: float) -> None:
    falls_back = script(ratio, seed=2)
    for sequence in range(3):
        for start in (0, 1000):
            found = np.mean([falls_back(sequence, start + n) for n in range(200)])
            assert found == pytest.approx(ratio, abs=0.02)
    both = [[falls_back(sequence, n) for n in range(200)] for sequence in range(2)]
    assert ratio in (0.0, 1.0) or both[0] != both[1]


@pytest.mark.parametrize(
    ("gate", "options", "words"),
    [
        ("big-little", {"fallback_ratio": 1.5}, "between 0 and 1"),
        ("full", {"fallback_ratio": 0.2}, "gate 'full' runs no token again"),
        ("big-little:gamma=0", {"fallback_ratio": 0.2}, "runs no token again"),
        ("big-little:k=9", {"fallback_ratio": 0.2}, "from 1 to 8"),
        ("big-little", {"fallback_ratio": 0.2, "prefetch_accuracy": 0.0}, "above 0 and at most 1"),
        ("big-little:reuse=experts", {"prefetch_accuracy": 0.8}, "exactly what the rejected pass"),
    ],
)
def test_what_cannot_be_is_refused(gate: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ImpossibleSetting) as caught:
        settings(gate, **options)
    assert words in str(caught.value)


def test_a_trace_without_confidence_needs_a_ratio() -> None:
    with pytest.raises(ImpossibleSetting, match="--fallback-ratio"):
        run(trace(), "big-little")
