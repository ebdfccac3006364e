"""Do bench, eval and quality run tokens again, as text generation does?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from bench_runs import settings, tiny
from gated_text import two_models
from small_llms import llm, prompts

import stock
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.routing import LayerRouting
from moesaic.engine.assemble import on_store
from moesaic.engine.gated_reading import read
from moesaic.engine.runner import Runner
from moesaic.lab.against.rounds import Spread
from moesaic.lab.bench import grid, turns
from moesaic.lab.bench.bench_configs import check_fallbacks, plan_configs
from moesaic.lab.bench.bench_row import BenchRow
from moesaic.lab.bench.bench_steps import CaseRuns, measure_once
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.gate_gain import gate_stats
from moesaic.lab.bench.grid import joined_replay, run_bench, run_drafted, run_gated
from moesaic.lab.bench.replayed_routing import BenchRouting, choose_routing
from moesaic.lab.fallback_script import script
from moesaic.lab.quality.expert_quality import text_logits
from moesaic.machines.real.forward_pass import GREEDY, ForwardPass, Piece, Replay
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.policies.policy_set import with_options

EMULATED: dict[str, Any] = {"accelerator": "emulated", "cache_ratio": 0.25}
COUNT = 2


def configs(gate: str, case: Case, **options: Any) -> Any:
    how = with_options(settings(**options), {"gate": gate})
    return plan_configs(tiny()[0].spec, [("some", how)], [case])


def measured(
    gate: str, case: Case, ratio: float | None, trace: str = "synthetic", **options: Any
) -> BenchRow:
    model, loaded = tiny()
    routing = choose_routing(trace, model.spec, [case], COUNT)
    (row,) = run_bench(
        loaded, configs(gate, case, **options), [case], routing, COUNT, fallback_ratio=ratio
    )
    return row


@pytest.mark.parametrize("trace", ["synthetic", "none"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_bench_runs_the_scripted_tokens_again(batch: int, trace: str) -> None:
    case = Case("decode", 12, batch)
    row = measured("big-little", case, 0.3, trace, **EMULATED)
    falls_back = script(0.3)
    again = sum(falls_back(s, t) for s in range(batch) for t in range(12))
    assert again > 0
    counter = row.runs.gate
    assert (counter.first, counter.again) == (COUNT * batch * 12, COUNT * again)
    assert row.tokens == COUNT * batch * 12, "evicted passes are no tokens"
    tokens = sum(report.tokens for report in row.runs.measured.reports)
    assert tokens == row.tokens + counter.again
    stats = counter.stats(row.runs.prefetch_accuracy)
    assert stats.fallback_ratio == again / (batch * 12)
    if trace == "synthetic":
        assert stats.prefetch_accuracy == 1.0, "a trace has one routing for both passes"


def replay_of(number: int) -> Replay:
    """Routing of step `number`: expert 10 * step + sequence first."""
    first = np.arange(3)[:, None] + 10 * number  # [sequences, 1]
    ranks = np.hstack([first, first + 100])
    weights, scores = (first / 100).astype(np.float32), (ranks / 100).astype(np.float32)
    return lambda layer: LayerRouting(layer, first, weights, ranks, scores)


def test_rows_of_several_steps_keep_their_own_routing() -> None:
    joined = joined_replay([(replay_of(4), 2), (replay_of(1), 0), (replay_of(4), 1)])
    assert joined is not None
    found = joined(7)
    assert found.layer == 7
    assert found.experts.tolist() == [[42], [10], [41]]
    assert found.ranked.tolist() == [[42, 142], [10, 110], [41, 141]]
    assert np.array_equal(found.weights, (found.experts / 100).astype(np.float32))
    assert np.array_equal(found.scores, (found.ranked / 100).astype(np.float32))
    assert joined_replay([(None, 0), (None, 1)]) is None, "the model's own routers"


@pytest.mark.parametrize("run", [run_gated, run_drafted])
def test_every_token_of_a_bench_has_its_own_routing(run: Any, monkeypatch: Any) -> None:
    """Sequences are at tokens of their own, since some run again and others do not."""
    seen: list[tuple[int, int]] = []  # token as (step, sequence), expert

    def step(work: ForwardPass) -> torch.Tensor:
        assert not any(each.sampling for each in work.pieces), "a gate judges logits"
        assert work.replay is not None
        seen.extend(zip(work.numbers, work.replay(0).experts[:, 0].tolist(), strict=True))
        return torch.zeros(len(work.numbers), 5)

    def again(work: ForwardPass, rows: list[int]) -> list[int]:
        return [row for row in rows if not work.pieces[row].attempt]

    runner: Any = SimpleNamespace(
        step=step, placed=lambda work: work, take_back=again, gate=SimpleNamespace(draft=2),
        cache=SimpleNamespace(truncate=lambda slot, length: None),
    )  # fmt: skip
    for module in (grid, grid):
        monkeypatch.setattr(module, "note_step", lambda *given: None)
    tokens = [[10 * at + slot for slot in range(3)] for at in range(5)]
    steps = [
        ForwardPass(
            [Piece(slot, [token], sampling=GREEDY) for slot, token in enumerate(row)],
            replay_of(at),
        )
        for at, row in enumerate(tokens)
    ]
    run(runner, steps, CaseRuns(), lambda sequence, at: (sequence + at) % 3 == 0)
    assert {token for token, _ in seen} == {token for row in tokens for token in row}
    assert all(token == expert for token, expert in seen)
    assert len(seen) > len(tokens) * 3, "some ran again"


def test_a_bench_sets_the_equation_beside_the_measured_speedup() -> None:
    """T is that of gate full in the same test, all else being equal, and of nothing else."""
    cases = [Case("decode", 12, 2), Case("decode", 8, 1), Case("prefill", 8, 1)]
    kinds = [
        ("full", EMULATED),
        ("full", EMULATED | {"cache_ratio": 0.5}),
        ("big-little", EMULATED),
    ]
    asked = [("some", with_options(settings(**how), {"gate": gate})) for gate, how in kinds]
    model, loaded = tiny()
    routing = choose_routing("synthetic", model.spec, cases, 1)
    planned = plan_configs(model.spec, asked, cases)
    rows = list(run_bench(loaded, planned, cases, routing, 1, fallback_ratio=0.3))
    for full, gated in zip(rows[:2], rows[6:8], strict=True):
        stats = gate_stats(gated, rows)
        assert stats.full_s == full.seconds / full.tokens
        assert stats.full_from == "a run with gate full"
        ratio = full.seconds / gated.seconds
        assert stats.measured_speedup == pytest.approx(ratio)
        assert stats.predicted_speedup == pytest.approx(ratio, rel=0.5), "the same passes"
        assert gate_stats(full, rows).measured_speedup is None
        assert gate_stats(gated, rows[3:]).full_from == "big passes"
    assert gate_stats(rows[8], rows).measured_speedup is None, "a prompt has no gate"


def test_configurations_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round has every configuration once, and ratios are those of one round."""
    case = Case("decode", 6, 1)
    grid = [("gpu-only", "full"), ("gpu-only", "big-little"), ("hybrid", "full"),
            ("hybrid", "big-little")]  # fmt: skip
    how = settings(**EMULATED)
    asked = [(f"{schedule} {gate}", with_options(how, {"schedule": schedule, "gate": gate}))
             for schedule, gate in grid]  # fmt: skip
    model, loaded = tiny()
    planned = plan_configs(model.spec, asked, [case])
    routing = choose_routing("synthetic", model.spec, [case], 3)
    order: list[str] = []
    once = measure_once

    def listening(runner: Runner, *given: Any) -> None:
        order.append(runner.gate_name)
        once(runner, *given)

    monkeypatch.setattr(turns, "measure_once", listening)
    rows = turns.run_in_turns(loaded, planned, [case], routing, 3, fallback_ratio=0.3)
    assert order == ["full", "big-little"] * 2 + ["big-little", "full"] * 2 + order[:4]
    assert [row.config for row in rows] == planned
    taken = [[6.0, 4.0, 8.0], [3.0, 4.0, 4.0], [2.0, 1.0, 2.0], [1.0, 1.0, 2.0]]
    for row, seconds in zip(rows, taken, strict=True):
        assert len(row.runs.seconds) == 3
        row.runs.seconds[:] = seconds
    alone, policies, both = turns.paired(rows)
    assert (alone.times, alone.over_product) == (Spread(2.0, 1.0, 2.0), None)
    assert (policies.times, policies.over_product) == (Spread(4.0, 3.0, 4.0), None)
    assert both.times == Spread(4.0, 4.0, 6.0)
    assert both.over_product == Spread(1.0, 0.5, 1.0)


def test_turns_need_several_configurations() -> None:
    with pytest.raises(ImpossibleSetting, match="there is one"):
        turns.check_turns(configs("full", Case("decode", 6, 1), **EMULATED))


def test_a_bench_of_the_little_model_replays_half_of_the_routing() -> None:
    case = Case("decode", 8, 1)
    for gate, experts in (("full", 2), ("little", 1)):
        row = measured(gate, case, None, **EMULATED)
        active = {layer.active for report in row.runs.measured.reports for layer in report.layers}
        assert active == {experts}


def test_contexts_of_a_bench_stay_those_of_its_tokens() -> None:
    """A token that runs again has the same context, and no sequence grows by it."""
    row = measured("big-little", Case("decode", 6, 2), 0.5)
    each = [[(s.new_tokens, s.context) for s in step.sequences] for step in row.runs.steps]
    assert max(context for step in each for _, context in step) == 5
    assert all(new == 1 for step in each for new, _ in step)


def test_drafts_of_a_bench_leave_no_entries_behind() -> None:
    """Checks begin where the drafts did, and the next round behind what stood."""
    row = measured("self-speculative:draft=2", Case("decode", 8, 1), 0.4)
    falls_back, expected, at = script(0.4), [], 0
    while at < 8:
        drafts = min(2, 8 - at - 1)
        expected += [(1, at + number) for number in range(drafts)] + [(drafts + 1, at)]
        right = 0
        while right < drafts and not falls_back(0, at + right):
            right += 1
        at += right + 1
    found = [(s.new_tokens, s.context) for step in row.runs.steps for s in step.sequences]
    assert found == expected * COUNT


def test_a_bench_on_a_traces_routing_needs_a_ratio() -> None:
    case = Case("decode", 4, 1)
    model, _ = tiny()
    replayed = choose_routing("synthetic", model.spec, [case], 1)
    with pytest.raises(ImpossibleSetting, match="--fallback-ratio"):
        check_fallbacks(configs("big-little", case), replayed, None)
    with pytest.raises(ImpossibleSetting, match="runs no token again"):
        check_fallbacks(configs("little", case), replayed, 0.2)
    check_fallbacks(configs("big-little", case), BenchRouting("own", {}), None)
    check_fallbacks(configs("big-little", case), replayed, 0.2)


GAMMA = 0.1


def expected_logits(tokens: list[int]) -> tuple[torch.Tensor, int]:
    """Two plain models that take turns at a given text; how often the whole one had to."""
    models = two_models("olmoe")
    memory = BlockCache(models.whole.architecture.spec, 1, 128, torch.float32)
    rows, fallbacks = [], 0
    for token in tokens:
        logits = models._feed(models.half, [token], memory)
        if float(logits.softmax(-1).max()) <= GAMMA:
            memory.truncate(0, memory.length(0) - 1)
            logits = models._feed(models.whole, [token], memory)
            fallbacks += 1
        rows.append(logits)
    return torch.cat(rows), fallbacks


@pytest.mark.parametrize("machine", ["cpu", "emulated"])
def test_a_text_is_read_as_it_would_be_written(machine: str) -> None:
    tokens = prompts((20,))[0]
    expected, fallbacks = expected_logits(tokens)
    assert 0 < fallbacks < len(tokens)
    gate = f"big-little:gamma={GAMMA}"
    with llm(stock.saved("olmoe").folder, machine, dtype="fp32", gate=gate) as model:
        runner = model.model.runner
        assert torch.allclose(read(runner, 0, tokens), expected, atol=1e-4)
        assert runner.cache.length(0) == len(tokens)
        runner.free_slot(0)
        pieces = list(text_logits(runner, [*tokens, 1], 100, 7))
    assert torch.allclose(torch.cat([piece.logits for piece in pieces]), expected, atol=1e-4)


def test_the_whole_model_reads_a_text_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with llm(stock.saved("olmoe").folder, dtype="fp32") as model:
        runner, steps = model.model.runner, []
        step = runner.step

        def listening(work: Any) -> Any:
            steps.append(work)
            return step(work)

        monkeypatch.setattr(runner, "step", listening)
        read(runner, 0, [1, 2, 3])
    assert [len(work.numbers) for work in steps] == [3]


def test_replayed_routing_of_a_runner_is_cut_to_what_the_gate_allows() -> None:
    case = Case("decode", 2, 1)
    (config,) = configs("little", case, **EMULATED)
    model, loaded = tiny()
    source = choose_routing("synthetic", model.spec, [case], 1).of(case)
    assert source is not None
    from moesaic.workloads.steps import decode_steps

    routed = next(iter(decode_steps(source, 1, 1)))
    runner: Runner = on_store(loaded.decoder, loaded.store, config.settings, config.plan.capacity)
    try:
        runner.step(ForwardPass([Piece(0, [1])], replay=routed.layer))
        assert runner.report is not None
        assert [layer.active for layer in runner.report.layers] == [1, 1, 1]
        whole = Piece(0, [1], prompt=True)
        runner.step(ForwardPass([whole], replay=routed.layer))
        assert [layer.active for layer in runner.report.layers] == [2, 2, 2]
    finally:
        runner.close()
