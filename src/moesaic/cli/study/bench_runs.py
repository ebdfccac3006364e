"""A bench at work: rates, loading and tests, with progress bars on standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from moesaic.cli.shared.output import progress
from moesaic.cli.study.simulate_recording import announce_compilation

if TYPE_CHECKING:
    from moesaic.lab.bench.cases import Case
    from moesaic.lab.bench.last_steps import Film
    from moesaic.lab.bench.loaded import BenchModel, Loaded
    from moesaic.lab.bench.rates import MeasuredRates
    from moesaic.lab.bench.replayed_routing import Routing
    from moesaic.lab.bench.row import Contender, Row


@dataclass(frozen=True, slots=True)
class Done:
    model: BenchModel
    loaded: Loaded
    rates: MeasuredRates
    rows: list[Row]
    film: Film | None


def run_with_progress(
    model: BenchModel,
    contenders: Sequence[Contender],
    cases: Sequence[Case],
    routing: Routing,
    repetitions: int,
    filmed: bool,
) -> Done:
    """Contenders differ in policies and slots only: threads, precisions and link are the same."""
    from moesaic.lab.bench.grid import run_bench
    from moesaic.lab.bench.last_steps import Film
    from moesaic.lab.bench.loaded import load_model
    from moesaic.lab.bench.rates import measure_rates

    announce_compilation()
    settings, plan = contenders[0].settings, contenders[0].plan
    click.echo("measuring what this machine reaches", err=True)
    before = measure_rates(settings, plan.dtype)
    quiet = not sys.stderr.isatty()
    with progress("loading experts", model.spec.num_expert_blocks, quiet) as advance:
        loaded = load_model(model, plan.dtype, plan.expert_dtype, advance, settings.kernel)
    film = Film() if filmed else None
    piece = settings.max_step_tokens
    total = repetitions * sum(case.steps(piece) for case in cases) * len(contenders)
    with progress("measuring", total, quiet) as advance:
        rows = list(run_bench(loaded, contenders, cases, routing, repetitions, advance, film))
    rates = before.or_better(measure_rates(settings, plan.dtype))
    return Done(model, loaded, rates, rows, film)
