"""Big-little decoding on top of the other papers' policies: which gains add up.

Per machine and batch, against loading on demand into an LRU cache (the paper's baseline): what the
gate gains alone, what a set of policies gains alone, what both gain, and the product of the two.
Where both gain less than the product, they eat each other."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.worker_pool import worker_pool
from moesaic.hardware.machine_reader import known_machines, load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.policy_set import PolicySet
from moesaic.reproductions.mobile.paper import OLMOE
from moesaic.reproductions.row import Row
from moesaic.workloads.source import MemoryTrace, TraceSource

PREFIX = "together"
BASE = ("gpu-only", "lru", "none")
SETS = tuple(
    (schedule, cache, prefetch)
    for schedule in ("hybrid", "best-split")
    for cache in ("mrs", "two-speed")
    for prefetch in ("none", "impact")
)
BATCHES = {1: 128, 8: 48, 64: 16}  # and how many steps are measured
GATE, FALLBACK_RATIO, CACHE_RATIO = "big-little", 0.21, 0.25  # the paper's for OLMoE on GSM8K
ADDS_UP = 0.95  # of the product, from which on gains are said to add up


@dataclass(frozen=True, slots=True)
class Together:
    """One simulated run."""

    machine: str
    batch: int
    policies: tuple[str, str, str]
    gated: bool

    def settings(self) -> Settings:
        schedule, cache, prefetch = self.policies
        return Settings(
            load_model(OLMOE),
            load_machine(self.machine),
            policies=PolicySet.of(
                schedule=schedule, cache=cache, prefetch=prefetch,
                gate=GATE if self.gated else "full",
            ),
            cache_ratio=CACHE_RATIO,
            tokens=BATCHES[self.batch],
            batch=self.batch,
            warmup=8,
            fallback_ratio=FALLBACK_RATIO if self.gated else None,
        )  # fmt: skip

    def command(self) -> str:
        schedule, cache, prefetch = self.policies
        words = ["moesaic", "simulate", "--model", OLMOE, "--machine", self.machine]
        words += ["--trace", "synthetic", "--cache-ratio", f"{CACHE_RATIO:g}"]
        words += ["--batch", str(self.batch), "--tokens", str(BATCHES[self.batch])]
        words += ["--warmup", "8", "--schedule", schedule, "--cache", cache]
        words += ["--prefetch", prefetch]
        if self.gated:
            words += ["--gate", GATE, "--fallback-ratio", f"{FALLBACK_RATIO:g}"]
        return shlex.join([*words, "--json"])


def grid(machines: Sequence[str] | None, batches: Sequence[int] | None) -> list[Together]:
    """Every run; machines without enough memory for the model are left out, unless named."""
    found: list[Together] = []
    for machine in machines or known_machines():
        for batch in batches or BATCHES:
            if batch not in BATCHES:
                known = ", ".join(map(str, BATCHES))
                raise ImpossibleSetting(f"batch {batch} is not simulated: choose among {known}")
            first = Together(machine, batch, BASE, False)
            try:
                first.settings()
            except ImpossibleSetting:
                if machines:
                    raise
                continue
            several = [replace(first, policies=each) for each in (BASE, *SETS)]
            found += [replace(each, gated=gated) for each in several for gated in (False, True)]
    return found


def execute(run: Together) -> float:
    """Seconds per token of a sequence."""
    settings = run.settings()
    return simulate(settings, _routing(run.batch)).mean_s


@lru_cache(maxsize=1)
def _routing(batch: int) -> TraceSource:
    """The same for every machine and every set of policies."""
    settings = Together("rtx4080-i5-12400", batch, BASE, True).settings()
    source = choose_workload(None, replace(settings, profile_tokens=256)).source
    return MemoryTrace(source.header, list(source.blocks()))


def seconds(
    runs: Sequence[Together], jobs: int, advance: Callable[[int], None]
) -> dict[Together, float]:
    if jobs <= 1:
        return dict(_one_after_another(runs, advance))
    with worker_pool(jobs) as pool:
        found = {}
        for run, taken in zip(runs, pool.map(execute, runs), strict=True):
            found[run] = taken
            advance(1)
    return found


def _one_after_another(
    runs: Sequence[Together], advance: Callable[[int], None]
) -> Iterator[tuple[Together, float]]:
    for run in runs:
        yield run, execute(run)
        advance(1)


class Gains(NamedTuple):
    """Speedups over the baseline of one machine and batch."""

    run: Together  # with both
    gate: float
    policies: float
    both: float

    @property
    def product(self) -> float:
        return self.gate * self.policies

    def row(self) -> Row:
        run, names = self.run, " + ".join(self.run.policies)
        share = self.both / self.product
        verdict = "they add up" if share >= ADDS_UP else "they eat each other"
        conditions = (
            f"simulated, {OLMOE}, synthetic routing, {CACHE_RATIO:.0%} of the experts cached, "
            f"fallback ratio {FALLBACK_RATIO:g}, over {' + '.join(BASE)}: {GATE} alone "
            f"{self.gate:.2f} x, {names} alone {self.policies:.2f} x, both {self.both:.2f} x, "
            f"product {self.product:.2f} x: {verdict}"
        )
        return Row(
            f"{PREFIX}/{run.machine}/batch={run.batch}/{'+'.join(run.policies)}",
            f"{GATE} and {names}, batch {run.batch}: both over the product of each",
            None, share, "x", conditions, run.command(),
        )  # fmt: skip


def gains(found: Mapping[Together, float]) -> list[Gains]:
    """Per machine, batch and set of policies."""
    several = []
    for run, taken in found.items():
        if not run.gated or run.policies == BASE:
            continue
        base = found[replace(run, policies=BASE, gated=False)]
        gate = base / found[replace(run, policies=BASE)]
        policies = base / found[replace(run, gated=False)]
        several.append(Gains(run, gate, policies, base / taken))
    return several
