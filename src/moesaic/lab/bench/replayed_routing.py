"""Whose routing a bench measures under: the model's own routers', or a trace's.

A trace is replayed over and over where it is too short: repetitions go on where the last one
ended, so that no cache sees the same tokens twice in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from moesaic.hardware.machine_reader import load_machine
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.lab.bench.cases import Case
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_spec import ModelSpec
from moesaic.workloads.source import MemoryTrace, TraceSource
from moesaic.workloads.steps import popularity

OWN, SYNTHETIC = "none", "synthetic"  # values of `trace` other than a file and `bundled`
PROFILE_TOKENS = 256  # the first ones decide the initial placement
WARMUP_STEPS = 16  # before a test is measured


@dataclass(frozen=True, slots=True)
class BenchRouting:
    words: str  # where it comes from, for the user
    sources: dict[Case, TraceSource]  # none: the model's own routers

    @property
    def kind(self) -> str:
        """The kind of routing in two words."""
        first = next(iter(self.sources.values()), None)
        if first is None:
            return "own routing"
        return f"{first.header.origin} routing"

    def of(self, case: Case) -> TraceSource | None:
        return self.sources.get(case)

    def counts(self) -> NDArray[np.int64] | None:
        """Uses of every expert in the profile part."""
        first = next(iter(self.sources.values()), None)
        return None if first is None else popularity(first, PROFILE_TOKENS)


def choose_routing(
    trace: str, spec: ModelSpec, cases: Sequence[Case], repetitions: int
) -> BenchRouting:
    """Refuses a trace of another model, or one with hardly a token, before anything is loaded."""
    if trace == OWN:
        return BenchRouting("the model's own routers, on random tokens", {})
    sources, words = {}, ""
    for case in cases:
        settings = _settings(spec, case, repetitions if trace == SYNTHETIC else 0)
        workload = choose_workload(None if trace == SYNTHETIC else trace, settings)
        words, source = workload.words, workload.source
        if trace == SYNTHETIC:  # made while it is read: once is enough
            source = MemoryTrace(source.header, list(source.blocks()))
        sources[case] = source
    return BenchRouting(words, sources)


def _settings(spec: ModelSpec, case: Case, repetitions: int) -> Settings:
    """A run as long as the test; without repetitions, as short as can be."""
    base = Settings(
        spec, unlimited_machine(), profile_tokens=PROFILE_TOKENS, cache_ratio=1.0, warmup=0
    )
    if not repetitions:
        return replace(base, phase=case.phase, tokens=1, prompts=1)
    if case.phase == "prefill":
        return replace(base, phase="prefill", tokens=case.tokens, prompts=repetitions, warmup=1)
    steps = WARMUP_STEPS + repetitions * case.tokens
    return replace(base, tokens=steps, batch=case.batch)


def unlimited_machine() -> MachineSpec:
    """Which routing is replayed depends on no machine: on this one everything fits."""
    some = load_machine("h200-emr16")
    return replace(some, gpu=replace(some.gpu, memory_gb=inf), cpu=replace(some.cpu, memory_gb=inf))
