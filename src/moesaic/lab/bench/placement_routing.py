"""The routing that a measured comparison replays: which tokens are measured, and which tokens the
initial placement is profiled on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting
from moesaic.lab.bench.replayed_routing import WARMUP_STEPS as WARMUP
from moesaic.lab.bench.replayed_routing import unlimited_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_spec import ModelSpec
from moesaic.workloads.source import MemoryTrace, TraceSource
from moesaic.workloads.step_routing import StepRouting
from moesaic.workloads.steps import decode_steps, popularity

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
    """Of a recorded trace, or synthetic where there is none; refused where it is too short for one
    round from token `first`, the largest that is measured from, on. Later rounds of a short trace
    begin again at the token that measuring begins at."""
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
