"""Is the floor under a measured row made of the bytes and products of its steps?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bench_runs import ACCELERATED, INVENTED, TINY, bench, settings, tiny
from torch.utils._python_dispatch import TorchDispatchMode

import stock
from moesaic.core.report import LayerReport, StepReport
from moesaic.core.step import Step
from moesaic.engine.assemble import on_store
from moesaic.engine.dense_weights import packed_dtype
from moesaic.engine.memory.capacity import Capacity
from moesaic.lab.bench import rates
from moesaic.lab.bench.bench_model import load_bench_model, random_model
from moesaic.lab.bench.bench_row import CpuFloor, make_floor, run_floor_s
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.rates import MeasuredRates, Rates, measure_rates
from moesaic.machines.real.forward_pass import ForwardPass, Piece

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
