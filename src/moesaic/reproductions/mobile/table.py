"""The rows: which runs each needs, and what it says once they are done."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import fmean
from typing import NamedTuple

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.worker_pool import worker_pool
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.gating.rules import Rule
from moesaic.lab.gating.tally import Tally, tallies
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.policy_set import PolicySet
from moesaic.reproductions.mobile import paper, quality_rows, speed_rows
from moesaic.reproductions.mobile.paper import CACHE_RATIO, MACHINE
from moesaic.reproductions.mobile.quality_rows import PROBLEMS, QUICK_PROBLEMS, answered
from moesaic.reproductions.mobile.speed_rows import MACHINES, Speed
from moesaic.reproductions.row import Row
from moesaic.workloads.source import MemoryTrace, TraceSource

# The simulated runs behind the rows: a system on the paper's machine, with a gate.

TOKENS = 256


@dataclass(frozen=True, slots=True)
class Run:
    """Loading on demand into an LRU cache, as the paper's baseline does, unless said otherwise."""

    model: str
    gate: str = "full"
    fallback_ratio: float | None = None
    prefetch: str = "none"
    prefetch_accuracy: float | None = 0.8  # None: of a gate that reuses, which has no other
    cache_ratio: float | None = None  # None: as many experts as a token uses

    @property
    def ratio(self) -> float:
        return CACHE_RATIO[self.model] if self.cache_ratio is None else self.cache_ratio

    def settings(self) -> Settings:
        return Settings(
            load_model(self.model),
            load_machine(MACHINE),
            policies=PolicySet.of(
                schedule="gpu-only", cache="lru", prefetch=self.prefetch, gate=self.gate
            ),
            cache_ratio=self.ratio,
            tokens=TOKENS,
            fallback_ratio=self.fallback_ratio,
            prefetch_accuracy=self.prefetch_accuracy,
        )

    def command(self) -> str:
        """The command that repeats this run."""
        words = ["moesaic", "simulate", "--model", self.model, "--machine", MACHINE]
        words += ["--trace", "synthetic", "--cache-ratio", f"{self.ratio:.6g}"]
        words += ["--tokens", str(TOKENS), "--schedule", "gpu-only", "--cache", "lru"]
        words += ["--prefetch", self.prefetch, "--gate", self.gate]
        if self.fallback_ratio is not None:
            words += ["--fallback-ratio", f"{self.fallback_ratio:g}"]
        if self.fallback_ratio is not None and self.prefetch_accuracy is not None:
            words += ["--prefetch-accuracy", f"{self.prefetch_accuracy:g}"]
        return shlex.join([*words, "--json"])

    def full(self) -> Run:
        """The paper's baseline under the same memory limit: all experts, nothing prefetched."""
        return replace(self, gate="full", fallback_ratio=None, prefetch="none")


def execute(run: Run) -> float:
    """Seconds per token."""
    settings = run.settings()
    return simulate(settings, _routing(run.model)).mean_s


@lru_cache(maxsize=4)
def _routing(model: str) -> TraceSource:
    source = choose_workload(None, Run(model).settings()).source
    return MemoryTrace(source.header, list(source.blocks()))


REUSE = "reuse=experts"
ACCURACIES = (0.8, 1.0)  # of what is prefetched for big passes: the paper says "more than 80 %"


_SPEED_PROBLEMS, _REPETITIONS = 2, 3


@dataclass(slots=True)
class Found:
    """What was measured, for pictures."""

    quality: dict[Rule, Tally] = field(default_factory=dict)
    speeds: dict[str, dict[str, Speed]] = field(default_factory=dict)


class Claim(NamedTuple):
    """The mean over pairs of runs of how many times faster the first is than the second."""

    id: str
    claim: str
    paper: float | None
    pairs: tuple[tuple[Run, Run], ...]

    def row(self, seconds: dict[Run, float]) -> Row:
        ours = fmean(seconds[slow] / seconds[fast] for fast, slow in self.pairs)
        first = self.pairs[0][0]
        ratios = ", ".join(f"{fast.ratio:.1%}" for fast, _ in self.pairs)
        known = "" if first.fallback_ratio is None else f", {_wants(first.prefetch_accuracy)}"
        setting = (
            f"simulated on {paper.MACHINE}, batch 1, bf16, {TOKENS} tokens of synthetic routing, "
            f"LRU over {ratios} of the experts, loaded on demand{known}; fallback ratio as stated "
            "by the paper"
        )
        return Row(self.id, self.claim, self.paper, ours, "x", setting, first.command())


def _wants(accuracy: float | None) -> str:
    if accuracy is None:
        return "big passes use what the evicted pass wanted"
    return f"{accuracy:.0%} of the evicted pass's wants are right"


class Reproduction:
    """The rows whose id starts with `only`, not computed yet. `quick`: fewer problems, for a look;
    `found` keeps what pictures are made of."""

    def __init__(self, only: str = "", quick: bool = False) -> None:
        every = list(_wanted())
        exact = [each for each in every if each.id == only]
        self._wanted = exact or [each for each in every if each.id.startswith(only)]
        self._runs = list(
            dict.fromkeys(run for each in self._wanted for pair in each.pairs for run in pair)
        )
        self._only = only
        self._quality = any(each.startswith(only) for each in quality_rows.ids())
        self._speed = any(each.startswith(only) for each in speed_rows.ids())
        self._problems = QUICK_PROBLEMS if quick else PROBLEMS
        self._repetitions = 1 if quick else _REPETITIONS
        self.found = Found()
        if not (self._wanted or self._quality or self._speed):
            raise ImpossibleSetting(
                f"no row of this reproduction has an id that starts with {only!r}; ids start with "
                "table2, table3, table4, fig5, accuracy or measured"
            )

    @property
    def drawable(self) -> bool:
        """Whether there will be anything for a picture."""
        return self._quality

    def total(self, jobs: int = 1) -> int:
        """How many pieces of work there are: runs, parts of the problems, repetitions."""
        speed = len(MACHINES) * (self._repetitions + 1) if self._speed else 0
        return len(self._runs) + (jobs if self._quality else 0) + speed

    def rows(self, jobs: int = 1, advance: Callable[[int], None] = lambda done: None) -> list[Row]:
        """Do them all, in `jobs` processes; `advance(1)` is called after each piece."""
        done = dict(zip(self._runs, _each(self._runs, jobs, advance), strict=True))
        rows = [each.row(done) for each in self._wanted]
        if self._quality:
            self.found.quality = tallies(answered(self._problems, jobs, advance))
            rows += quality_rows.quality_rows(self.found.quality, self._problems)
        if self._speed:
            self.found.speeds = speed_rows.measure_all(_SPEED_PROBLEMS, self._repetitions, advance)
            rows += speed_rows.speed_rows(self.found.speeds, _SPEED_PROBLEMS)
        exact = [row for row in rows if row.id == self._only]
        return exact or [row for row in rows if row.id.startswith(self._only)]


def _each(runs: Sequence[Run], jobs: int, advance: Callable[[int], None]) -> Iterator[float]:
    if jobs <= 1 or len(runs) <= 1:
        for run in runs:
            yield execute(run)
            advance(1)
        return
    with worker_pool(min(jobs, len(runs))) as pool:
        for seconds in pool.map(execute, runs):
            yield seconds
            advance(1)


def _wanted() -> Iterator[Claim]:
    for stated in (*paper.TABLE_2, *paper.TABLE_3, *paper.TABLE_4):
        if not stated.fallback_ratio:
            run = Run(stated.model, f"little:k={stated.k}")
            yield _over_full(stated.id, stated.claim, stated.speedup, run)
            continue
        for accuracy in ACCURACIES:
            run = Run(
                stated.model, f"big-little:k={stated.k}", stated.fallback_ratio,
                prefetch_accuracy=accuracy,
            )  # fmt: skip
            name = f"{stated.id}/accuracy={accuracy:g}"
            yield _over_full(name, stated.claim, stated.speedup, run)
        name, claim = f"{stated.id}/{REUSE}", f"{stated.claim}, {REUSE}"
        yield _over_full(name, claim, stated.speedup, _bound(run))
    yield from _figure_5()


def _bound(run: Run) -> Run:
    """The same where big passes use the evicted one's experts. Their weights take no time, so that
    one way stands for both."""
    separator = "," if ":" in run.gate else ":"
    return replace(run, gate=f"{run.gate}{separator}{REUSE}", prefetch_accuracy=None)


def _over_full(name: str, claim: str, stated: float | None, run: Run) -> Claim:
    return Claim(name, f"{claim}: speedup over all experts", stated, ((run, run.full()),))


def _figure_5() -> Iterator[Claim]:
    ours = [Run(model, "big-little", ratio) for model, ratio in paper.GSM8K_RATIO.items()]
    joined = [replace(run, prefetch="pre-gated") for run in ours]
    for name, claim, stated, prefetch in (
        ("fig5/pre-gated", "MoBiLE over Pre-gated MoE", paper.OVER_PRE_GATED, "pre-gated"),
        ("fig5/adapmoe", "MoBiLE over AdapMoE", paper.OVER_ADAPMOE, "next-layer"),
    ):
        others = [replace(run.full(), prefetch=prefetch) for run in ours]
        pairs = tuple(zip(ours, others, strict=True))
        yield Claim(name, f"{claim}, two models", stated, pairs)
        bound = tuple((_bound(run), other) for run, other in pairs)
        yield Claim(f"{name}/{REUSE}", f"{claim}, {REUSE}, two models", stated, bound)
    pairs = tuple((run, run.full()) for run in joined)
    claim = "MoBiLE with pre-gated little passes over all experts, two models"
    yield Claim("fig5/combined", claim, paper.WITH_PRE_GATING, pairs)
    bound = tuple((_bound(run), full) for run, full in pairs)
    yield Claim(f"fig5/combined/{REUSE}", f"{claim}, {REUSE}", paper.WITH_PRE_GATING, bound)
