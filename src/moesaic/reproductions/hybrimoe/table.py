"""The whole table: which runs each row needs, and what the row says once they are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TypeVar

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.worker_pool import worker_pool
from moesaic.policies.systems import PAPER_MRS
from moesaic.reproductions.hybrimoe import beliefs, hit_rates
from moesaic.reproductions.hybrimoe.claims import (
    CPU_SPEED,
    IMPLIED,
    MACHINE,
    Claim,
    average,
    latency,
    speedup,
)
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
from moesaic.reproductions.hybrimoe.runs import (
    DECODE_STEPS,
    PROFILES,
    SETTLED_STEPS,
    WINDOW,
    Run,
    execute,
)
from moesaic.reproductions.row import Row

FIGURE = {"prefill": "fig7", "decode": "fig8"}
REAL_TRACES = {"deepseek-v2-lite": "deepseek-v2-lite_prefill.npz"}
ABLATION_LENGTH = 128  # Fig. 3(d) shows this length for Qwen2; Table III does not say
# Decode averages are long runs behind one prompt length instead of short ones behind four: the
# length changes a speedup by less than a longer run does (figure 8).
DECODE_LENGTHS = (128,)
PROFILED_STEPS = 4 * WINDOW

Item = TypeVar("Item")
Done = TypeVar("Done")
Named = TypeVar("Named", Claim, hit_rates.HitRate)


class Reproduction:
    """The rows whose id starts with `only`, not computed yet. `traces` is a folder with real
    routing traces; models without one there replay synthetic routing."""

    def __init__(self, only: str = "", traces: str | None = None) -> None:
        real = Traces(traces)
        self._wanted = _only(only, list(_wanted(real)))
        self._hit_rates = _only(only, list(hit_rates.wanted(real.of)))
        self._runs = list(dict.fromkeys(run for w in self._wanted for run in w.runs))
        if not self._wanted and not self._hit_rates:
            raise ImpossibleSetting(
                f"no row of this reproduction has an id that starts with {only!r}; ids start with "
                "average, belief, fig7, fig8, fig9, profile or table3"
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
    with worker_pool(jobs) as pool:
        for outcome in pool.map(do, items, chunksize=4):
            yield outcome
            advance(1)


class Traces:
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


def _wanted(traces: Traces) -> Iterator[Claim]:
    for phase in ("prefill", "decode"):
        yield from _averages(traces, phase)
    yield from _ablation()
    yield from beliefs.wanted()
    for phase in ("prefill", "decode"):
        yield from _figure(traces, phase)


def _grid(
    traces: Traces, phase: str, machine: str, system: str, lengths: tuple[int, ...] = LENGTHS
) -> list[Run]:
    return [
        Run(model, machine, phase, ratio, length, system, trace=traces.of(model))
        for model, ratio, length in product(MODELS, CACHE_RATIOS, lengths)
    ]


def _averages(traces: Traces, phase: str) -> Iterator[Claim]:
    for machine in (MACHINE, IMPLIED):
        ours, theirs = (
            _settled(traces, machine, system) if phase == "decode"
            else _grid(traces, phase, machine, system)
            for system in ("hybrimoe", "ktransformers")
        )  # fmt: skip
        for model in (None, *MODELS):
            name = f"average-{phase}" if model is None else f"average-{phase}/{model}"
            pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if model in (None, a.model)]
            yield _average(f"{name}@{machine}", phase, machine, model, pairs)
        if phase == "decode":
            yield from _by_profile(traces, machine)


def _by_profile(traces: Traces, machine: str) -> Iterator[Claim]:
    """What a longer profile gives both: a static placement is as good as its profile."""
    for profile, system in product(PROFILES, ("hybrimoe", "moesaic")):
        ours, theirs = (
            [replace(run, tokens=PROFILED_STEPS, profile=profile)
             for run in _grid(traces, "decode", machine, each, DECODE_LENGTHS)]
            for each in (system, "ktransformers")
        )  # fmt: skip
        claim = f"average decode speedup of {system} over kTransformers, profile of {profile}"
        setting = f"{PROFILED_STEPS} tokens behind 128, 3 cache ratios, machine {machine}"
        name = f"profile={profile}/{system}@{machine}"
        yield average(name, claim, None, setting, list(zip(ours, theirs, strict=True)))


def _settled(traces: Traces, machine: str, system: str) -> list[Run]:
    """The decode grid in runs that are long enough for the speedup not to hang on their length."""
    grid = _grid(traces, "decode", machine, system, DECODE_LENGTHS)
    return [replace(run, tokens=SETTLED_STEPS) for run in grid]


def _average(
    name: str, phase: str, machine: str, model: str | None, pairs: list[tuple[Run, Run]]
) -> Claim:
    claim = f"average {phase} speedup over kTransformers" + (f", {MODELS[model]}" if model else "")
    lengths = f"{SETTLED_STEPS} tokens behind 128" if phase == "decode" else "4 lengths"
    setting = f"{lengths}, 3 cache ratios, machine {machine} ({CPU_SPEED[machine]})"
    paper = AVERAGE_SPEEDUP[phase] if model is None else None
    return average(name, claim, paper, setting, pairs)


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


def _ablation() -> Iterator[Claim]:
    for machine, phase in product((MACHINE, IMPLIED), ABLATION_S):
        setting = (ABLATION_MODEL, machine, phase, ABLATION_RATIO, ABLATION_LENGTH)
        tokens = SETTLED_STEPS if phase == "decode" else DECODE_STEPS
        base = Run(*setting, "ktransformers", tokens=tokens)
        for technique, paper_s in ABLATION_S[phase].items():
            run = base
            if technique != "baseline":
                policies, promote = _technique(phase, technique)
                run = Run(*setting, policies=policies, promote=promote, tokens=tokens)
            name = f"table3/{phase}/{technique}@{machine}"
            yield latency(name, f"{phase} latency, {technique}", paper_s, run)
            if run is not base:
                gain = ABLATION_SPEEDUP[phase][technique]
                yield speedup(f"{name}/speedup", f"{phase} speedup, {technique}", gain, run, base)


def _figure(traces: Traces, phase: str) -> Iterator[Claim]:
    for system in SYSTEMS:
        for run in _grid(traces, phase, MACHINE, system):
            ratio = f"{100 * run.cache_ratio:g}%"
            name = f"{FIGURE[phase]}/{run.model}/{run.length}/{ratio}/{system}"
            what = "time to first token" if phase == "prefill" else "time between tokens"
            claim = f"{what}, {MODELS[run.model]}, {run.length} tokens, {ratio} cached, {system}"
            yield latency(name, claim, None, run)
