"""A bench in turns: in every round each configuration runs each test once.

On a shared machine speeds drift by more than policies differ. Within a round they are taken shortly
after one another, so ratios are taken there; their median and range over the rounds are reported.
All runners stay open meanwhile, which a GPU's memory is not planned for: that is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.assemble import on_store
from moesaic.engine.runner import Runner
from moesaic.hardware.procfs import process_memory
from moesaic.lab.against.rounds import Spread
from moesaic.lab.bench.bench_configs import starting_counts
from moesaic.lab.bench.bench_model import Loaded
from moesaic.lab.bench.bench_row import BenchConfig, BenchRow
from moesaic.lab.bench.bench_steps import CaseRuns, Repetition, Run, measure_once, warmed_up
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.grid import repetitions_of, run_of
from moesaic.lab.bench.replayed_routing import BenchRouting
from moesaic.policies.policy_choice import PolicyChoice


def check_turns(configs: Sequence[BenchConfig]) -> None:
    if len(configs) < 2:
        raise ImpossibleSetting(
            "--in-turns compares configurations within rounds, and there is one: name several with "
            "--gates, --systems or --cache-ratios"
        )
    if configs[0].settings.capabilities.own_memory:
        raise ImpossibleSetting(
            "--in-turns keeps all configurations open at once, and each plans with a GPU of its "
            "own: leave it out there (configurations then run one after another)"
        )


@dataclass(slots=True)
class _Turn:
    """A test under one configuration, ready for its next round."""

    config: BenchConfig
    case: Case
    runner: Runner
    work: Iterator[Repetition]
    run: Run
    runs: CaseRuns


def run_in_turns(
    loaded: Loaded,
    configs: Sequence[BenchConfig],
    cases: Sequence[Case],
    routing: BenchRouting,
    rounds: int,
    advance: Callable[[int], None] = lambda steps: None,
    fallback_ratio: float | None = None,
) -> list[BenchRow]:
    """The rows of `run_bench`, in its order, with one repetition per round. Every other round goes
    through the configurations backwards, so that none always follows the same one."""
    counts = routing.counts()
    with ExitStack() as stack:
        runners = []
        for config in configs:
            capacity = config.plan.capacity
            starts = starting_counts(config.spec, config.settings, counts)
            runner = on_store(loaded.decoder, loaded.store, config.settings, capacity, starts)
            stack.callback(runner.close)
            runners.append(runner)
        turns = []
        for case in cases:  # a test's rounds follow one another: what they share is short-lived
            several = [
                _turn(config, case, runner, routing, fallback_ratio)
                for config, runner in zip(configs, runners, strict=True)
            ]
            for number in range(rounds):
                for turn in several if number % 2 == 0 else reversed(several):
                    work = next(turn.work)
                    measure_once(turn.runner, work, turn.runs, advance, turn.run)
            turns += several
    peak = process_memory().peak
    rows = [BenchRow(turn.config, turn.case, turn.runs, loaded.seconds, peak) for turn in turns]
    return [row for config in configs for row in rows if row.config is config]


def _turn(
    config: BenchConfig,
    case: Case,
    runner: Runner,
    routing: BenchRouting,
    fallback_ratio: float | None,
) -> _Turn:
    work = repetitions_of(runner, case, routing, config.settings)
    run = run_of(runner, case, fallback_ratio)
    return _Turn(config, case, runner, work, run, warmed_up(runner, work, run))


@dataclass(frozen=True, slots=True)
class Paired:
    """How many times as fast as the first configuration one is, by rounds. `over_product`: where
    both its gate and the rest differ from the first's, that over the product of what each of the
    two gains alone; below 1 they eat each other."""

    test: str
    system: str
    cache_ratio: float
    times: Spread
    over_product: Spread | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def paired(rows: Sequence[BenchRow]) -> list[Paired]:
    """The ratios of every row but the first configuration's."""
    first = rows[0].config
    return [
        Paired(
            row.case.name,
            row.config.system,
            row.config.plan.cache_ratio,
            Spread.of(_over(_same(rows, row.case, first), row)),
            _over_product(rows, row, first),
        )
        for row in rows
        if row.config is not first
    ]


def _over(slow: BenchRow, fast: BenchRow) -> list[float]:
    return [a / b for a, b in zip(slow.runs.seconds, fast.runs.seconds, strict=True)]


def _over_product(rows: Sequence[BenchRow], row: BenchRow, first: BenchConfig) -> Spread | None:
    gate, own = row.config.settings.policies.gate, first.settings.policies.gate
    if gate == own:
        return None
    base = _same(rows, row.case, first)
    alone = _with_gate(rows, row, first, gate)
    ungated = _with_gate(rows, row, row.config, own)
    if alone is None or ungated is None or alone is row:
        return None
    pairs = zip(_over(base, row), _over(base, alone), _over(base, ungated), strict=True)
    return Spread.of([both / (a * b) for both, a, b in pairs])


def _same(rows: Sequence[BenchRow], case: Case, config: BenchConfig) -> BenchRow:
    return next(row for row in rows if row.case == case and row.config is config)


def _with_gate(
    rows: Sequence[BenchRow], row: BenchRow, config: BenchConfig, gate: PolicyChoice
) -> BenchRow | None:
    wanted = replace(config.settings, policies=config.settings.policies.but(gate=gate))
    same = (each for each in rows if each.case == row.case)
    return next((each for each in same if each.config.settings == wanted), None)
