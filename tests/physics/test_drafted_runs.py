"""Self-speculative decoding in the simulator: which passes a run has, and what is counted."""

from __future__ import annotations

from dataclasses import replace
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
from moesaic.lab.simulate.simulation import simulate
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.gate import gates
from moesaic.policies.policy_choice import choose
from moesaic.policies.policy_set import PolicySet
from moesaic.workloads.block import join
from moesaic.workloads.source import MemoryTrace, TraceSource
from moesaic.workloads.steps import decode_steps
from moesaic.workloads.synthetic.calibration import default_calibration
from moesaic.workloads.synthetic.generate import TraceShape, synthesize

MODEL = load_model("olmoe-1b-7b")  # top-8, 16 layers
MACHINE = load_machine("rtx4080-i5-12400")
GATE = "self-speculative:draft=3,k=2"


def trace(tokens: int = 600, top: float | None = None) -> TraceSource:
    calibration = default_calibration(MODEL.name, MODEL.num_experts)
    made = synthesize(calibration, TraceShape.of(MODEL), tokens, seed=3, ranks=16)
    if top is None:
        return made
    block, header = join(list(made.blocks())), made.header
    tops = np.full(tokens, top, dtype=np.float32)
    block = replace(block, top=tops, margin=tops, entropy=-np.log(tops))
    return MemoryTrace(replace(header, has_confidence=True), [block])


def passes(batch: int, steps: int, wrong: set[tuple[int, int]]) -> list[Pass]:
    """`wrong`: (sequence, token) whose successor is drafted wrongly."""
    gate = choose(gates, GATE).create(gates, MODEL.top_k)
    routed = decode_steps(trace(), batch, steps, skip_tokens=0)
    return list(gated(routed, gate, lambda sequence, token: (sequence, token) in wrong))


def test_drafts_then_a_check_of_all_of_them() -> None:
    """One sequence, 13 tokens: a check that all drafts pass writes four, one whose second draft is
    wrong writes two."""
    found = passes(1, 13, {(0, 5)})
    shape = [(each.step.tokens, each.stands, each.again, each.checks) for each in found]
    draft, right, wrong = (1, 0, 0, ()), (4, 4, 4, ((3, 4),)), (4, 2, 4, ((3, 2),))
    assert shape == [draft] * 3 + [right] + [draft] * 3 + [wrong] + [draft] * 3 + [right]
    counts = [None if each.routed.counts is None else list(each.routed.counts) for each in found]
    assert counts == ([[2]] * 3 + [None]) * 3
    assert found[3].rows == (0, 0, 0, -1)
    assert found[3].ages == (3, 2, 1, 1)
    whole = list(decode_steps(trace(), 1, 13, skip_tokens=0))
    for token, expected in enumerate(whole[:4]):
        assert (found[3].layer(5).experts[token] == expected.layer(5).experts[0]).all()
    # the round after the wrong draft begins behind what stood: tokens 0 to 3, 4 and 5
    assert (found[8].layer(0).ranked[0] == whole[6].layer(0).ranked[0]).all()
    assert found[7].step.sequences[0].context == whole[4].step.sequences[0].context


def test_sequences_draft_at_their_own_pace() -> None:
    """They stay in step, however many of each one's drafts are wrong: a round takes as many passes
    whatever stands of it."""
    found = passes(2, 12, {(1, 0)})
    assert [each.step.tokens for each in found[:8]] == [2, 2, 2, 8, 2, 2, 2, 8]
    assert found[3].checks == ((3, 4), (3, 1))
    assert found[3].rows == (0, 0, 0, -1, 1, 1, 1, -1)
    first, second = found[4].step.sequences
    assert first.context == second.context + 3


def run(gate: str, source: TraceSource | None = None, **options: Any) -> Result:
    chosen = {k: options.pop(k) for k in ("schedule", "cache", "prefetch") if k in options}
    usual: dict[str, Any] = {"tokens": 24, "warmup": 4, "profile_tokens": 32, "checked": True}
    policies = PolicySet.of(gate=gate, **chosen)
    settings = Settings(MODEL, MACHINE, policies=policies, **(usual | options))
    return simulate(settings, trace() if source is None else source)


def test_acceptance_reads_and_tokens_are_counted() -> None:
    always, never = run(GATE, fallback_ratio=0.0), run(GATE, fallback_ratio=1.0)
    assert (always.gate.acceptance, always.gate.tokens_per_check) == (1.0, 4.0)
    assert (never.gate.acceptance, never.gate.tokens_per_check) == (0.0, 1.0)
    assert never.mean_s > 2 * always.mean_s
    assert always.gate.fallback_ratio is None
    full = run("full")
    assert full.gate.reads_per_token == 8 * 16
    assert full.gate.reads_saved == 0
    assert always.gate.reads_per_token is not None
    # three drafts of two experts and a check of at most 4 x 8 per layer, for four tokens
    assert always.gate.reads_per_token < 16 * (3 * 2 + 4 * 8) / 4
    saved = 1 - always.gate.reads_per_token / (8 * 16)
    assert always.gate.reads_saved == pytest.approx(saved)


def test_the_traces_confidence_is_the_chance_that_a_draft_is_right() -> None:
    found = run(GATE, trace(top=0.75), tokens=160)
    by_ratio = run(GATE, fallback_ratio=0.25, tokens=160)
    assert found.gate.acceptance == by_ratio.gate.acceptance
    wrong = [script(0.25)(0, token) for token in range(160)]
    assert np.mean(wrong) == pytest.approx(0.25, abs=0.02)


def test_without_confidence_a_ratio_must_be_given() -> None:
    with pytest.raises(ImpossibleSetting, match="the share of drafts that are wrong"):
        run(GATE)
    with pytest.raises(ImpossibleSetting, match="between 0 and 1"):
        run(GATE, fallback_ratio=2.0)


COMBINED = [each for each in policy_combinations() if each[0] in ("best-split", "gpu-only")]


@pytest.mark.parametrize(("schedule", "cache", "prefetch"), values_first(COMBINED))
def test_every_policy_can_be_combined(schedule: str, cache: str, prefetch: str) -> None:
    """Every plan of these runs is proved legal."""
    found = run(
        GATE, fallback_ratio=0.3, tokens=12, warmup=0, batch=2, schedule=schedule, cache=cache,
        prefetch=prefetch,
    )  # fmt: skip
    assert found.tokens >= 8


def test_prefetching_for_checks_knows_what_drafts_wanted() -> None:
    options: dict[str, Any] = {"schedule": "gpu-only", "cache": "lru", "prefetch": "none"}
    known = run(GATE, fallback_ratio=0.0, prefetch_accuracy=1.0, tokens=48, **options)
    wrong = run(GATE, fallback_ratio=0.0, prefetch_accuracy=0.3, tokens=48, **options)
    assert known.gate.prefetch_accuracy == 1.0
    assert wrong.gate.prefetch_accuracy == pytest.approx(0.3, abs=0.05)
