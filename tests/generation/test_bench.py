"""Does a bench do the tests it is asked for, and say what happened in them?"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median, stdev
from typing import Any

import numpy as np
import pytest
import torch
from bench_runs import ACCELERATED, INVENTED, TINY, bench, routing, settings, tiny
from torch.utils._python_dispatch import TorchDispatchMode

import stock
from moesaic.core.chrome_trace import with_heads
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.report import LayerReport, Span, StepReport
from moesaic.core.step import Step
from moesaic.engine.assemble import on_store
from moesaic.engine.dense_weights import packed_dtype
from moesaic.engine.memory.capacity import Capacity
from moesaic.lab.bench import bench_configs, rates
from moesaic.lab.bench.bench_configs import plan_configs
from moesaic.lab.bench.bench_model import load_bench_model, random_model
from moesaic.lab.bench.bench_row import CpuFloor, make_floor, run_floor_s
from moesaic.lab.bench.bench_steps import repetitions
from moesaic.lab.bench.cases import Case, make_cases
from moesaic.lab.bench.rates import MeasuredRates, Rates, measure_rates
from moesaic.lab.bench.replayed_routing import PROFILE_TOKENS, WARMUP_STEPS
from moesaic.lab.bench.step_recorder import MAX_STEPS, StepRecorder
from moesaic.machines.real.forward_pass import GREEDY, ForwardPass, Piece
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
    spans = [Span("cpu", "dense", at, at + 5, 1, -1, 1) for at in (90, 115)]
    named = with_heads(spans, layers=1, ends=[100, 200])
    assert [(span.layer, span.end_ns) for span in named] == [(-1, 100), (-1, 200)]


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
    assert one.plan.capacity == Capacity(0, 3, 40, 3)
    assert one.settings.max_step_tokens == 40
    (longer,) = plan_configs(spec, [("moesaic", settings(max_model_len=100))], (READ,))
    assert longer.plan.capacity == Capacity(0, 1, 100, 2)


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


# Is the floor under a measured row made of the bytes and products of its steps?

# Shared experts, and a first layer without experts.
GLM = {"model_type": "glm4_moe"} | stock.SHARED | stock.FAMILIES["glm-4.5"][1]
GLM |= {"num_key_value_heads": 4}
SHAPES = {"olmoe": TINY, "glm-4.5": GLM}


class Watched(TorchDispatchMode):  # type: ignore[misc]
    """Counts what torch is asked for: weights, keys and values read, and products done."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name == "aten.linear.default":
            rows, weight = args[0], args[1]
            self.bytes += 2 * weight.numel()  # as stored: a router may have converted them
            self.flops += 2 * len(rows) * weight.numel()
        elif name == "aten.scaled_dot_product_attention.default":
            query, key, value = args[:3]
            self.bytes += key.nbytes + value.nbytes
            self.flops += 4 * query.numel() * key.shape[-2]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_steps_bytes_and_products_are_those_that_torch_sees(
    tmp_path: Path, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOESAIC_KERNEL", "reference")  # native kernels are not torch's
    config = tmp_path / "shape.json"
    config.write_text(json.dumps(SHAPES[shape]))
    model = random_model(str(config))
    loaded = load_bench_model(model, "bf16", "bf16")
    runner = on_store(loaded.decoder, loaded.store, settings(), Capacity(0, 2, 64))
    floor = CpuFloor(model.spec, "bf16", "bf16", INVENTED.cpu)
    runner.step(ForwardPass([Piece(0, [1, 2, 3, 4, 5]), Piece(1, [5, 4, 3, 2, 1])]))
    with Watched() as seen:
        runner.step(ForwardPass([Piece(0, [6]), Piece(1, [7])]))
    assert runner.report is not None
    step = Step.decode(2, 5)
    assert floor.flops(step) == seen.flops
    assert floor.bytes_read(step, runner.report) == seen.bytes


def report_of(active: int, hits: int = 0) -> StepReport:
    layers = tuple(LayerReport(layer, 0, 0, active, hits, 0) for layer in range(3))
    return StepReport(0, 0, 1, layers)


def test_without_an_accelerator_the_slower_of_reading_and_multiplying_counts() -> None:
    spec = tiny()[0].spec
    step, report = Step.decode(1, 10), report_of(2)
    slow_reading = CpuFloor(spec, "bf16", "bf16", Rates(1, 1e-6, 1.0))
    slow_products = CpuFloor(spec, "bf16", "bf16", Rates(1, 1000.0, 1e-6))
    read, flops = slow_reading.bytes_read(step, report), slow_reading.flops(step)
    assert slow_reading.step_s(step, report) == pytest.approx(read / 1e3)
    assert slow_products.step_s(step, report) == pytest.approx(flops / 1e6)


def test_missing_experts_are_read_by_the_cpu_or_cross_the_link() -> None:
    """With an accelerator that reads for nothing, what is not there is all that takes time."""
    spec, free = tiny()[0].spec, Rates(1, 1e6, 1e5)
    floor = make_floor(MeasuredRates(Rates(1, 6.0, 1e5), free, 4.0), spec, "bf16", "bf16")
    step = Step.decode(1)
    missing = 3 * (5 - 2) * spec.expert_bytes("bf16")
    assert floor.step_s(step, report_of(5, hits=2)) == pytest.approx(missing / 10e9, rel=1e-3)
    assert floor.moving_s(8_000) == pytest.approx(2e-6)


def test_what_crossed_the_link_takes_its_time_too() -> None:
    floor = make_floor(ACCELERATED, tiny()[0].spec, "bf16", "bf16")
    steps, reports = [Step.decode(1)], [report_of(2, hits=2)]
    alone = run_floor_s(floor, steps, reports, 0)
    assert run_floor_s(floor, steps, reports, 4_000_000_000) == pytest.approx(1.0)
    assert alone == floor.step_s(steps[0], reports[0]) < 1.0


def test_a_row_says_the_floor_per_token() -> None:
    case = Case("decode", 8, batch=2)
    (row,) = bench({"moesaic": settings()}, case)
    packed = packed_dtype(row.config.settings, "bf16")  # whole strips, where kernels are native
    floor = make_floor(INVENTED, row.config.spec, "bf16", "bf16", packed)
    reports = row.runs.measured.reports
    total = sum(map(floor.step_s, row.runs.steps, reports))
    said = row.as_dict(INVENTED)
    assert said["floor_ms"] == pytest.approx(1e3 * total / (2 * 8 * 2))
    assert said["floor_ratio"] == pytest.approx(said["ms_per_token"] / said["floor_ms"])


def test_rates_are_measured_with_the_threads_of_the_machine() -> None:
    alone = measure_rates(settings(threads=1), "fp32")
    assert (alone.cpu.threads, alone.accelerator, alone.link_gb_s) == (1, None, None)
    assert torch.get_num_threads() == 1
    both = measure_rates(settings(threads=3, accelerator="emulated", link_gb_s=0.5), "bf16")
    assert both.accelerator is not None
    assert (both.cpu.threads, both.accelerator.threads) == (2, 1)
    assert both.link_gb_s is not None
    assert 0.0 < both.link_gb_s <= 0.505, "a link is never faster than it is"
    for found in (alone.cpu, both.cpu, both.accelerator):
        assert 0.1 < found.read_gb_s < 10_000
        assert 1e-4 < found.tflops < 1_000


def test_a_link_reaches_its_speed_unless_others_are_at_work_all_the_time() -> None:
    attempts = (rates._link_gb_s(0.5) for _ in range(20))
    assert any(0.4 <= reached <= 0.505 for reached in attempts)


def test_the_better_of_two_measurements_is_the_ceiling() -> None:
    other = MeasuredRates(Rates(1, 5.0, 0.3), Rates(1, 30.0, 0.1), 2.0)
    best = ACCELERATED.or_better(other)
    assert best == MeasuredRates(Rates(1, 10.0, 0.3), Rates(1, 30.0, 0.2), 4.0)
    assert INVENTED.or_better(INVENTED) == INVENTED
