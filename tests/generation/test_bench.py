"""Does a bench do the tests it is asked for, and say what happened in them?"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from statistics import median, stdev

import numpy as np
import pytest
from bench_runs import ACCELERATED, INVENTED, bench, routing, settings, tiny

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.report import LayerReport, Span, StepReport
from moesaic.core.step import Step
from moesaic.lab.bench import bench_configs
from moesaic.lab.bench.bench_configs import plan_configs
from moesaic.lab.bench.bench_steps import repetitions
from moesaic.lab.bench.cases import Case, make_cases
from moesaic.lab.bench.replayed_routing import PROFILE_TOKENS, WARMUP_STEPS
from moesaic.lab.bench.step_recorder import MAX_STEPS, StepRecorder
from moesaic.machines.real.forward_pass import GREEDY
from moesaic.policies.compose import initial_placement
from moesaic.workloads.steps import decode_steps, popularity, prefill_steps

READ, WRITE, TOGETHER = Case("prefill", 40), Case("decode", 12), Case("decode", 6, batch=3)
KEYS = {
    "test", "tokens_per_s", "ms_per_token", "stdev", "hit_rate", "bytes", "floor_ms", "policies",
    "dtype", "cache_ratio", "overhead_us_per_layer", "network_ms", "experts_ms", "load_s",
    "peak_bytes",
}  # fmt: skip


def test_tests_are_named_as_in_llama_bench() -> None:
    cases = make_cases([512, 0], [128], [1, 4])
    assert [case.name for case in cases] == ["pp512", "tg128", "tg128@4"]


@pytest.mark.parametrize(
    ("lists", "words"),
    [
        (([0], [0], [1]), "no test was asked for"),
        (([-1], [8], [1]), "--prompt-tokens is -1"),
        (([8], [-2], [1]), "--generate is -2"),
        (([8], [8], [0]), "--batch is 0; it must be at least 1"),
    ],
)
def test_impossible_tests_are_refused(lists: tuple[list[int], ...], words: str) -> None:
    with pytest.raises(ImpossibleSetting, match=words):
        make_cases(*lists)


@pytest.mark.parametrize("case", [READ, WRITE, TOGETHER])
def test_tokens_are_wanted_and_no_logits(case: Case) -> None:
    """As of an answer without penalties: 256 rows of logits take longer than some steps."""
    pieces = [each for step in next(repetitions(case, None, 16, 97)) for each in step.pieces]
    assert {each.sampling for each in pieces} == {GREEDY}


def test_every_test_is_run_under_every_system() -> None:
    how = {name: settings(name, accelerator="emulated") for name in ("moesaic", "ktransformers")}
    rows = bench(how, READ, WRITE, TOGETHER)
    said = [(row.config.system, row.case.name) for row in rows]
    assert said == [(name, test) for name in how for test in ("pp40", "tg12", "tg6@3")]
    for row in rows:
        described = row.as_dict(ACCELERATED)
        assert described.keys() >= KEYS
        assert 0.0 < described["hit_rate"] <= 1.0
        assert described["cache_ratio"] == 0.25
        assert described["floor_ms"] > 0.0
    prefill = rows[3].as_dict(ACCELERATED)["policies"]
    assert prefill["schedule"] == load_schedule("ktransformers", "prefill")


def load_schedule(system: str, phase: str) -> str:
    return str(settings(system).policies.schedule_for(phase))


def test_numbers_of_a_row_fit_together() -> None:
    (row,) = bench({"moesaic": settings()}, TOGETHER, count=3)
    said = row.as_dict(INVENTED)
    rates = [18 / seconds for seconds in row.runs.seconds]
    assert len(rates) == said["repetitions"] == 3
    assert said["stdev"] == pytest.approx(stdev(rates))
    assert min(rates) <= said["tokens_per_s"] <= max(rates)
    assert said["ms_per_token"] == pytest.approx(1000 / said["tokens_per_s"])
    assert said["hit_rate"] is None
    assert said["bytes"] == 0
    measured = row.runs.measured
    for cost, report in zip(measured.times, measured.reports, strict=True):
        replayed = cost.replay_ns
        assert cost.network_ns + cost.experts_ns + cost.overhead_ns + replayed == report.latency_ns
        assert min(cost.network_ns, cost.experts_ns, cost.overhead_ns) > 0
    own = [cost.overhead_ns for cost in measured.times]
    assert said["overhead_us_per_layer"] == pytest.approx(median(own) / 3 / 1e3)
    replayed = sum(cost.replay_ns for cost in measured.times)
    parts = said["network_ms"] + said["experts_ms"] + (sum(own) + replayed) / 54 / 1e6
    assert parts == pytest.approx(said["ms_per_token"])
    assert said["around_experts_us"] == said["overhead_us_per_layer"] + said["router_us"]


def test_one_repetition_has_no_spread() -> None:
    (row,) = bench({"moesaic": settings()}, WRITE, count=1)
    assert row.stdev is None


def test_every_repetition_begins_with_an_empty_context() -> None:
    (row,) = bench({"moesaic": settings()}, TOGETHER)
    assert row.runs.steps == 2 * [Step.decode(3, context) for context in range(6)]


def test_long_prompts_are_read_in_pieces() -> None:
    (row,) = bench({"moesaic": settings(max_step_tokens=16)}, READ)
    pieces = [Step.prompt(16), Step.prompt(16, 16), Step.prompt(8, 32)]
    assert row.runs.steps == 2 * pieces


def test_pieces_are_routed_as_the_whole_prompt() -> None:
    source = routing(READ).of(READ)
    assert source is not None
    (whole,) = islice(prefill_steps(source, 40, skip_tokens=PROFILE_TOKENS), 1)
    pieces = next(repetitions(READ, source, 16, 97))
    for layer in range(3):
        parts = [work.replay(layer) for work in pieces if work.replay is not None]
        assert len(parts) == 3
        for name in ("experts", "weights", "ranked", "scores"):
            joined = np.concatenate([getattr(part, name) for part in parts])
            np.testing.assert_array_equal(joined, getattr(whole.layer(layer), name))


def test_hits_are_those_of_the_trace() -> None:
    """kTransformers' slots never change, so its hits can be counted without running anything."""
    (row,) = bench({"ktransformers": settings("ktransformers", accelerator="emulated")}, WRITE)
    source = routing(WRITE).of(WRITE)
    assert source is not None
    counts, slots = popularity(source, PROFILE_TOKENS), row.config.plan.capacity.slots
    placed = set(initial_placement("popular", counts, slots, per_layer=True))
    steps = decode_steps(source, 1, skip_tokens=PROFILE_TOKENS, wrap=True)
    # A warm-up takes what it needs from a repetition of its own.
    assert WARMUP_STEPS > 12
    used = [
        (layer, int(expert))
        for step in islice(steps, 12, 3 * 12)
        for layer in range(3)
        for expert in step.layer(layer).experts.ravel()
    ]
    expected = sum(expert in placed for expert in used) / len(used)
    assert row.as_dict(ACCELERATED)["hit_rate"] == pytest.approx(expected)
    assert row.runs.measured.bytes_moved == 0


def test_own_routers_choose_where_no_trace_does() -> None:
    found = routing(WRITE, trace="none")
    assert found.of(WRITE) is None
    assert found.counts() is None
    (row,) = bench({"moesaic": settings()}, WRITE, trace="none")
    assert all(layer.active == 2 for report in row.runs.measured.reports for layer in report.layers)


@pytest.mark.parametrize("accelerator", ["none", "emulated"])
def test_the_last_steps_are_recorded_in_the_schema_of_timelines(accelerator: str) -> None:
    recorder, case = StepRecorder(), Case("decode", MAX_STEPS + 8)
    bench({"moesaic": settings(accelerator=accelerator)}, case, READ, count=1, recorders=[recorder])
    assert len(recorder.reports) == MAX_STEPS
    spans = recorder.timeline.spans
    assert {span.layer for span in spans} == {-1, 0, 1, 2}
    heads = [span for span in spans if span.layer == -1 and span.kind == "dense"]
    assert [span.end_ns for span in heads] == [report.end_ns for report in recorder.reports]
    lanes = {"cpu"} if accelerator == "none" else {"gpu", "cpu", "pcie"}
    assert {span.lane for span in spans} <= lanes | {"engine"}
    for report in recorder.reports:
        inside = [s for s in spans if report.start_ns <= s.start_ns < report.end_ns]
        computed = [s for s in inside if s.kind == "expert"]
        active = sum(layer.active for layer in report.layers)
        assert sum(len(s.computed) for s in computed) == active
        assert all(s.end_ns <= report.end_ns for s in computed)


def test_a_head_ends_with_its_own_step_however_long_that_was_held_up() -> None:
    recorder, layer = StepRecorder(), (LayerReport(0, 0, 0, 1, 0, 0),)
    recorder.reports = [StepReport(0, 100, 1, layer), StepReport(110, 200, 1, layer)]
    recorder.timeline.spans += [Span("cpu", "dense", at, at + 5, 1, -1, 1) for at in (90, 115)]
    recorder._name_heads()
    assert [(span.layer, span.end_ns) for span in recorder.timeline.spans] == [(-1, 100), (-1, 200)]


def test_every_configuration_is_recorded_by_itself() -> None:
    moesaic, static = StepRecorder(), StepRecorder()
    how = {name: settings(name, accelerator="emulated") for name in ("moesaic", "ktransformers")}
    bench(how, WRITE, count=1, recorders=[moesaic, static])
    assert len(moesaic.reports) == len(static.reports) == 12
    assert moesaic.timeline.spans
    assert "pcie" not in static.timeline.lanes, "kTransformers moves nothing"


def test_capacity_is_what_the_tests_need() -> None:
    spec = tiny()[0].spec
    (one,) = plan_configs(spec, [("moesaic", settings())], (READ, TOGETHER))
    assert one.plan.capacity == (0, 3, 40)
    assert one.settings.max_step_tokens == 40
    (longer,) = plan_configs(spec, [("moesaic", settings(max_model_len=100))], (READ,))
    assert longer.plan.capacity == (0, 1, 100)


def test_what_does_not_fit_is_refused_before_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, how = tiny()[0].spec, settings()
    with pytest.raises(ImpossibleSetting, match=r"at most 256 .*: use shorter tests"):
        plan_configs(spec, [("moesaic", how)], (Case("decode", 257),))
    with pytest.raises(ImpossibleSetting, match="--max-model-len is 30"):
        plan_configs(spec, [("moesaic", replace(how, max_model_len=30))], (READ,))
    monkeypatch.setattr(bench_configs, "memory", lambda: (10**6, 10**5))
    with pytest.raises(ImpossibleSetting, match="of main memory") as caught:
        plan_configs(spec, [("moesaic", how), ("hybrimoe", how)], (TOGETHER,))
    assert str(caught.value).startswith("moesaic: ")
    assert "--max-sequences" not in str(caught.value)
