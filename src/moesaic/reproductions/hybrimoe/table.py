"""The whole table: which runs each row needs, and what the row says once they are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, TypeVar

from moesaic.core.errors import ImpossibleSetting
from moesaic.policies.systems import PAPER_MRS
from moesaic.reproductions.hybrimoe import hit_rates
from moesaic.reproductions.hybrimoe.paper import (
    ABLATION_MODEL,
    ABLATION_RATIO,
    ABLATION_S,
    ABLATION_SPEEDUP,
    AVERAGE_SPEEDUP,
    CACHE_RATIOS,
    LENGTHS,
    MODELS,
    SYSTEMS,
)
from moesaic.reproductions.hybrimoe.runs import Outcome, Run, again, execute
from moesaic.reproductions.row import Row

MACHINE = "a6000-xeon5220r"
IMPLIED = "a6000-xeon5220r-implied"
FIGURE = {"prefill": "fig7", "decode": "fig8"}
REAL_TRACES = {"deepseek-v2-lite": "deepseek-v2-lite_prefill.npz"}
ABLATION_LENGTH = 128  # Fig. 3(d) shows this length for Qwen2; Table III does not say

Outcomes = Mapping[Run, Outcome]
Item = TypeVar("Item")
Done = TypeVar("Done")
Named = TypeVar("Named", "Wanted", hit_rates.HitRate)


class Wanted(NamedTuple):
    """A row to be: the runs it needs, and how it follows from them."""

    id: str
    runs: tuple[Run, ...]
    row: Callable[[Outcomes], Row]


class Reproduction:
    """The rows whose id starts with `only`, not computed yet. `traces` is a folder with real
    routing traces; models without one there replay synthetic routing."""

    def __init__(self, only: str = "", traces: str | None = None) -> None:
        real = _Traces(traces)
        self._wanted = _only(only, list(_wanted(real)))
        self._hit_rates = _only(only, list(hit_rates.wanted(real.of)))
        self._runs = list(dict.fromkeys(run for w in self._wanted for run in w.runs))
        if not self._wanted and not self._hit_rates:
            raise ImpossibleSetting(
                f"no row of this reproduction has an id that starts with {only!r}; ids start with "
                "average, fig7, fig8, fig9 or table3"
            )

    @property
    def total(self) -> int:
        """How many runs there are to do."""
        return len(self._runs) + len(self._hit_rates)

    def rows(self, jobs: int = 1, advance: Callable[[int], None] = lambda done: None) -> list[Row]:
        """Do them all, in `jobs` processes; `advance(1)` is called after each."""
        done = _each(execute, self._runs, jobs, advance)
        outcomes = dict(zip(self._runs, done, strict=True))
        rows = [wanted.row(outcomes) for wanted in self._wanted]
        return rows + list(_each(hit_rates.execute, self._hit_rates, jobs, advance))


def _only(only: str, items: list[Named]) -> list[Named]:
    """The one with this id, or all whose ids start like it."""
    exact = [item for item in items if item.id == only]
    return exact or [item for item in items if item.id.startswith(only)]


def _each(
    do: Callable[[Item], Done], items: list[Item], jobs: int, advance: Callable[[int], None]
) -> Iterator[Done]:
    if jobs <= 1 or len(items) <= 1:
        for item in items:
            yield do(item)
            advance(1)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for outcome in pool.map(do, items, chunksize=4):
            yield outcome
            advance(1)


class _Traces:
    """Real traces by model, where the user has them."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        missing = [f for f in REAL_TRACES.values() if folder and not (Path(folder) / f).is_file()]
        if missing:
            raise ImpossibleSetting(
                f"--traces {folder!r} must be a folder with {', '.join(missing)}; leave it out to "
                "replay synthetic routing"
            )

    def of(self, model: str) -> str | None:
        if self._folder is None or model not in REAL_TRACES:
            return None
        return str(Path(self._folder) / REAL_TRACES[model])


def _wanted(traces: _Traces) -> Iterator[Wanted]:
    for phase in ("prefill", "decode"):
        yield from _averages(traces, phase)
    yield from _ablation(traces)
    for phase in ("prefill", "decode"):
        yield from _figure(traces, phase)


def _grid(traces: _Traces, phase: str, machine: str, system: str) -> list[Run]:
    return [
        Run(model, machine, phase, ratio, length, system, trace=traces.of(model))
        for model, ratio, length in product(MODELS, CACHE_RATIOS, LENGTHS)
    ]


def _averages(traces: _Traces, phase: str) -> Iterator[Wanted]:
    for machine in (MACHINE, IMPLIED):
        ours = _grid(traces, phase, machine, "hybrimoe")
        theirs = _grid(traces, phase, machine, "ktransformers")
        for model in (None, *MODELS):
            name = f"average-{phase}" if model is None else f"average-{phase}/{model}"
            pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if model in (None, a.model)]
            yield _average(f"{name}@{machine}", phase, machine, model, pairs)


def _average(
    name: str, phase: str, machine: str, model: str | None, pairs: list[tuple[Run, Run]]
) -> Wanted:
    def row(outcomes: Outcomes) -> Row:
        gains = [outcomes[b].latency_s / outcomes[a].latency_s for a, b in pairs]
        return Row(
            name,
            f"average {phase} speedup over kTransformers" + (f", {MODELS[model]}" if model else ""),
            AVERAGE_SPEEDUP[phase] if model is None else None,
            sum(gains) / len(gains),
            "x",
            f"mean of {len(gains)} speedups from {min(gains):.2f} to {max(gains):.2f}: "
            f"4 lengths, 3 cache ratios, machine {machine}, {_routing(pairs)}",
            again(name, [run.trace for pair in pairs for run in pair]),
        )

    return Wanted(name, tuple(run for pair in pairs for run in pair), row)


def _routing(pairs: list[tuple[Run, Run]]) -> str:
    real = sorted({a.model for a, _ in pairs if a.trace is not None})
    return "synthetic routing" + (f" but real for {', '.join(real)}" if real else "")


# technique -> (schedule, cache, prefetch), promote; the baseline is the system ktransformers.
# The static schedule loads on demand in prefill, as kTransformers does (Table I).
def _technique(phase: str, technique: str) -> tuple[tuple[str, str, str], bool]:
    static = "gpu-only" if phase == "prefill" else "static-experts"
    return {
        "scheduling": (("hybrid", "pinned", "none"), False),
        "prefetching": ((static, "lfu", "impact"), False),
        "caching": ((static, PAPER_MRS, "none"), True),
        "all": (("hybrid", PAPER_MRS, "impact"), True),
    }[technique]


def _ablation(traces: _Traces) -> Iterator[Wanted]:
    for machine, phase in product((MACHINE, IMPLIED), ABLATION_S):
        base = Run(ABLATION_MODEL, machine, phase, ABLATION_RATIO, ABLATION_LENGTH, "ktransformers")
        for technique, paper_s in ABLATION_S[phase].items():
            run = base
            if technique != "baseline":
                policies, promote = _technique(phase, technique)
                run = Run(
                    ABLATION_MODEL, machine, phase, ABLATION_RATIO, ABLATION_LENGTH,
                    policies=policies, promote=promote,
                )  # fmt: skip
            name = f"table3/{phase}/{technique}@{machine}"
            yield _latency(name, f"{phase} latency, {technique}", paper_s, run)
            if run is not base:
                gain = ABLATION_SPEEDUP[phase][technique]
                yield _speedup(f"{name}/speedup", f"{phase} speedup, {technique}", gain, run, base)


def _latency(name: str, claim: str, paper_s: float | None, run: Run) -> Wanted:
    def row(outcomes: Outcomes) -> Row:
        outcome = outcomes[run]
        return Row(
            name, claim, paper_s, outcome.latency_s, "s", _conditions(run, outcome), run.command()
        )

    return Wanted(name, (run,), row)


def _speedup(name: str, claim: str, paper: float, run: Run, base: Run) -> Wanted:
    def row(outcomes: Outcomes) -> Row:
        gain = outcomes[base].latency_s / outcomes[run].latency_s
        conditions = _conditions(run, outcomes[run])
        return Row(name, claim, paper, gain, "x", conditions, again(name, [run.trace]))

    return Wanted(name, (run, base), row)


def _figure(traces: _Traces, phase: str) -> Iterator[Wanted]:
    for system in SYSTEMS:
        for run in _grid(traces, phase, MACHINE, system):
            ratio = f"{100 * run.cache_ratio:g}%"
            name = f"{FIGURE[phase]}/{run.model}/{run.length}/{ratio}/{system}"
            what = "time to first token" if phase == "prefill" else "time between tokens"
            claim = f"{what}, {MODELS[run.model]}, {run.length} tokens, {ratio} cached, {system}"
            yield _latency(name, claim, None, run)


def _conditions(run: Run, outcome: Outcome) -> str:
    where = "real routing" if run.trace is not None else "synthetic routing"
    text = f"machine {run.machine}, 4-bit, {where}, hit rate {outcome.hit_rate:.3f}"
    if outcome.prediction_accuracy:
        text += f", next layer predicted {outcome.prediction_accuracy[0]:.2f}"
    return text
