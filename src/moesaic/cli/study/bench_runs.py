"""Running a bench: rates, loading and tests, with progress bars on standard error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from moesaic.cli.shared.output import progress
from moesaic.cli.study.simulate_recording import announce_compilation

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.engine.memory.memory_plan import MemoryPlan
    from moesaic.lab.bench.bench_model import BenchModel, Loaded
    from moesaic.lab.bench.bench_row import BenchConfig, BenchRow
    from moesaic.lab.bench.cases import Case
    from moesaic.lab.bench.rates import MeasuredRates
    from moesaic.lab.bench.replayed_routing import BenchRouting
    from moesaic.lab.bench.step_recorder import StepRecorder


@dataclass(frozen=True, slots=True)
class Done:
    model: BenchModel
    loaded: Loaded
    rates: MeasuredRates
    rows: list[BenchRow]
    recorders: list[StepRecorder]  # one for each configuration, if any
    in_turns: bool = False


def run_with_progress(
    model: BenchModel,
    configs: Sequence[BenchConfig],
    cases: Sequence[Case],
    routing: BenchRouting,
    repetitions: int,
    recorded: bool,
    fallback_ratio: float | None = None,
    in_turns: bool = False,
    layerwise: bool = False,
) -> Done:
    """Configurations differ in policies and slots only: threads, dtypes and link are the same."""
    from moesaic.engine.dense_weights import dense_packer
    from moesaic.engine.packed_store import why_copied
    from moesaic.lab.bench.bench_model import load_bench_model
    from moesaic.lab.bench.grid import run_bench
    from moesaic.lab.bench.rates import measure_rates
    from moesaic.lab.bench.step_recorder import StepRecorder
    from moesaic.lab.bench.turns import run_in_turns

    announce_compilation()
    settings, plan = configs[0].settings, configs[0].plan
    click.echo("measuring what this machine reaches", err=True)
    before = measure_rates(settings, plan.dtype, plan.expert_dtype)
    with progress("loading experts", model.spec.num_expert_blocks) as advance:
        loaded = load_bench_model(
            model,
            plan.dtype,
            plan.expert_dtype,
            advance,
            _kernel(model, plan, settings),
            why_copied(settings) is None,
            dense_packer(settings, plan.dtype),
        )
    recorders = [StepRecorder() for _ in configs] if recorded else []
    piece = settings.step_tokens
    total = repetitions * sum(
        case.steps(piece) * (case.batch if config.settings.batch_invariant else 1)
        for case in cases
        for config in configs
    )
    with progress("measuring", total) as advance:
        what = (loaded, configs, cases, routing, repetitions, advance)
        if in_turns:
            rows = run_in_turns(*what, fallback_ratio)
        else:
            rows = list(run_bench(*what, recorders, fallback_ratio, layerwise))
    rates = before.or_better(measure_rates(settings, plan.dtype, plan.expert_dtype))
    return Done(model, loaded, rates, rows, recorders, in_turns)


def _kernel(model: BenchModel, plan: MemoryPlan, settings: EngineSettings) -> str:
    """The kernel whose layout the experts are packed in."""
    from moesaic.engine.expert_kernel import kernel_for
    from moesaic.kernels.dtypes import torch_dtype

    shape = model.architecture.expert_shape
    return kernel_for(shape, plan.expert_dtype, torch_dtype(plan.dtype), settings)
