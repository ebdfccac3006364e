"""Dynamic against static placement measured on this machine, in real time: HybriMoE's comparison.

How much dynamic placement gains depends on how fast the host reads its memory beside the link, so
the number of CPU threads is a dimension of the grid: few threads stand for a desktop's memory. In
every round each system runs once, on tokens of that round, and ratios are taken within rounds.
Every run opens the model's experts anew with the same initial placement, so that no system profits
from what an earlier run has learned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.assemble import locked_store, on_store, placed_for
from moesaic.engine.dense_weights import dense_packer
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.expert_kernel import kernel_for
from moesaic.kernels.dtypes import torch_dtype
from moesaic.lab.against.rounds import Spread
from moesaic.lab.bench.bench_configs import plan_configs
from moesaic.lab.bench.bench_model import BenchModel, Loaded, load_bench_model
from moesaic.lab.bench.bench_row import BenchConfig
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.rates import MeasuredRates, measure_rates
from moesaic.lab.bench.replayed_routing import WARMUP_STEPS as WARMUP
from moesaic.lab.bench.replayed_routing import unlimited_machine
from moesaic.lab.replayed_run import replay_steps
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_spec import ModelSpec
from moesaic.policies.systems import load_system
from moesaic.workloads.source import MemoryTrace, TraceSource
from moesaic.workloads.step_routing import StepRouting
from moesaic.workloads.steps import decode_steps, popularity

STATIC = "ktransformers"  # the system that others are compared with
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Grid:
    """What is measured of one model."""

    settings: EngineSettings  # of everything that is not a dimension below
    threads: tuple[int, ...]
    cache_ratios: tuple[float, ...]
    profiles: tuple[int, ...]  # tokens that the initial placement is profiled on
    firsts: tuple[int, ...]  # tokens of the routing that measuring begins at, behind the profile
    systems: tuple[str, ...]
    rounds: int
    tokens: int  # of one run

    @property
    def runs(self) -> int:
        per_round = product(
            self.threads, self.cache_ratios, self.firsts, self.profiles, self.systems
        )
        return self.rounds * sum(1 for _ in per_round)


class Cell(NamedTuple):
    threads: int
    cache_ratio: float
    first: int
    profile: int
    system: str


@dataclass(slots=True)
class _Runs:
    """One cell's rounds."""

    tokens_per_s: list[float] = field(default_factory=list)
    hit_rates: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """`over_static`: how many times as fast as static placement, within rounds; None: it is static
    placement, or that was not measured."""

    model: str
    routing: str
    threads: int
    host_gb_s: float
    link_gb_s: float | None
    cache_ratio: float
    first_token: int
    profile_tokens: int
    system: str
    tokens_per_s: Spread
    hit_rate: float
    over_static: Spread | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def configurations(model: BenchModel, grid: Grid) -> dict[Cell, BenchConfig]:
    """Every cell with its memory plan, or ImpossibleSetting before anything is loaded."""
    case = Case("decode", WARMUP + grid.tokens)
    return {
        cell: _planned(model, grid.settings, cell, case)
        for cell in map(
            Cell._make,
            product(grid.threads, grid.cache_ratios, grid.firsts, grid.profiles, grid.systems),
        )
    }


def _planned(model: BenchModel, base: EngineSettings, cell: Cell, case: Case) -> BenchConfig:
    settings = replace(base, threads=cell.threads, cache_ratio=cell.cache_ratio).with_system(
        load_system(cell.system)
    )
    (config,) = plan_configs(model.spec, [(cell.system, settings)], [case])
    return config


def load(model: BenchModel, config: BenchConfig, advance: Advance) -> Loaded:
    """The experts and the network that all cells share."""
    plan, settings = config.plan, config.settings
    shape, dtype = model.architecture.expert_shape, torch_dtype(plan.dtype)
    kernel = kernel_for(shape, plan.expert_dtype, dtype, settings)
    packer = dense_packer(settings, plan.dtype)
    return load_bench_model(
        model, plan.dtype, plan.expert_dtype, advance, kernel, mapped=False, dense=packer
    )


def measure(
    model: BenchModel,
    loaded: Loaded,
    cells: dict[Cell, BenchConfig],
    routing: MeasuredRouting,
    grid: Grid,
    advance: Advance = lambda runs: None,
) -> Iterator[MeasuredRow]:
    """The rows of one number of threads as soon as its rounds are done; `advance(1)` is called
    after every run."""
    decoder = placed_for(loaded.decoder, grid.settings)
    loaded = replace(loaded, decoder=decoder)
    with locked_store(loaded.store, grid.settings):
        for threads in grid.threads:
            here = {cell: each for cell, each in cells.items() if cell.threads == threads}
            first = next(iter(here.values()))
            rates = measure_rates(first.settings, first.plan.dtype, first.plan.expert_dtype)
            runs = _rounds(loaded, here, routing, grid, advance)
            for cell in here:
                yield _row(model, routing, rates, cell, runs)


def _rounds(
    loaded: Loaded,
    cells: dict[Cell, BenchConfig],
    routing: MeasuredRouting,
    grid: Grid,
    advance: Advance,
) -> dict[Cell, _Runs]:
    """Every other round goes through the cells backwards, so that none always follows the same."""
    profiles = product(grid.profiles, grid.firsts)
    counts = {(profile, first): routing.counts(profile, first) for profile, first in profiles}
    done: dict[Cell, _Runs] = {cell: _Runs() for cell in cells}
    for number in range(grid.rounds):
        order = list(cells.items())
        for cell, config in order if number % 2 == 0 else reversed(order):
            runner = on_store(
                loaded.decoder, loaded.store, config.settings, config.plan.capacity,
                counts[cell.profile, cell.first],
            )  # fmt: skip
            try:
                steps = routing.window(number, grid.tokens, cell.first)
                measured = replay_steps(runner, steps, WARMUP)
            finally:
                runner.close()
            done[cell].tokens_per_s.append(grid.tokens / sum(measured.latencies_s))
            done[cell].hit_rates.append(measured.hit_rate)
            advance(1)
    return done


def _row(
    model: BenchModel,
    routing: MeasuredRouting,
    rates: MeasuredRates,
    cell: Cell,
    runs: dict[Cell, _Runs],
) -> MeasuredRow:
    own, static = runs[cell], runs.get(cell._replace(system=STATIC))
    over = None
    if static is not None and cell.system != STATIC:
        pairs = zip(own.tokens_per_s, static.tokens_per_s, strict=True)
        over = Spread.of([ours / theirs for ours, theirs in pairs])
    return MeasuredRow(
        model.spec.name,
        routing.words,
        cell.threads,
        rates.cpu.read_gb_s,
        rates.link_gb_s,
        cell.cache_ratio,
        cell.first,
        cell.profile,
        cell.system,
        Spread.of(own.tokens_per_s),
        sum(own.hit_rates) / len(own.hit_rates),
        over,
    )


# The routing that a measured comparison replays: which tokens are measured, and which tokens the
# initial placement is profiled on.

__all__ = ["WARMUP", "MeasuredRouting", "measured_routing"]


@dataclass(frozen=True, slots=True)
class MeasuredRouting:
    """`first` is the token that measuring begins at. A profile of n tokens is the n tokens before
    it, so that profiles of different lengths end at the same token."""

    source: TraceSource
    words: str

    def counts(self, profile: int, first: int) -> NDArray[np.int64]:
        """Uses of every expert in a profile of so many tokens, [layer, expert]."""
        assert 1 <= profile <= first, "a profile ends where measuring begins"
        before = first - profile
        whole = popularity(self.source, first)
        return whole - popularity(self.source, before) if before else whole

    def window(self, number: int, tokens: int, first: int) -> Iterator[StepRouting]:
        """The steps of round `number`: every round has tokens of its own."""
        length = WARMUP + tokens
        steps = decode_steps(self.source, 1, skip_tokens=first, wrap=True)
        return islice(steps, number * length, (number + 1) * length)


def measured_routing(
    spec: ModelSpec, trace: Path | None, first: int, rounds: int, tokens: int
) -> MeasuredRouting:
    """The routing of a recorded trace, or synthetic where there is none; refused where it is too
    short for one round from token `first`, the largest that is measured from, on. Later rounds of a
    short trace begin again at the token that measuring begins at."""
    needed = rounds if trace is None else 1
    settings = Settings(
        spec,
        unlimited_machine(),
        profile_tokens=first,
        cache_ratio=1.0,
        warmup=WARMUP,
        tokens=needed * (WARMUP + tokens),
    )
    try:
        workload = choose_workload(None if trace is None else str(trace), settings)
    except ImpossibleSetting as error:
        raise ImpossibleSetting(f"{spec.name}: {error}") from None
    source = MemoryTrace(workload.source.header, list(workload.source.blocks()))
    return MeasuredRouting(source, workload.words)
