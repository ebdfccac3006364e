"""Runs one simulation with a progress bar, says which routing it replays, and keeps the timeline
of the steps that are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, NamedTuple

import click

from moesaic.cli.shared.output import progress
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.report import Span, Timeline
from moesaic.core.units import GB
from moesaic.lab.simulate.result import Result
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import full_token_s, simulate
from moesaic.lab.simulate.workload import (
    SYNTHETIC,
    Workload,
    choose_workload,
    shortened,
    usual_trace,
)
from moesaic.policies.compiled import compiled_before
from moesaic.workloads.bundled_traces import BUNDLED
from moesaic.workloads.source import TraceSource

LARGE_MODEL = "qwen3-30b-a3b"  # to try instead of a small one
MAX_STEPS = 100  # kept for a trace: beyond that, viewers get slow and say nothing new


class RecordedStep(NamedTuple):
    """One step as it happened; transfers may reach over its edges."""

    number: int  # of the measured steps, from 0
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Recording:
    """The first measured steps of a run. Pass `timeline` to the simulation and call `advance`
    after every step."""

    warmup: int
    timeline: Timeline = field(default_factory=Timeline)
    steps: list[RecordedStep] = field(default_factory=list)
    _done: int = 0
    _edge_ns: int = 0

    def advance(self, count: int = 1) -> None:
        """A step ends with its last span, the head's."""
        if not self.timeline.enabled:
            return
        end = self.timeline.spans[-1].end_ns
        if self._done >= self.warmup:
            self.steps.append(RecordedStep(self._done - self.warmup, self._edge_ns, end))
        else:
            self.timeline.spans.clear()
        self._done, self._edge_ns = self._done + count, end
        self.timeline.enabled = len(self.steps) < MAX_STEPS

    def typical(self, latencies_s: Sequence[float]) -> RecordedStep:
        """The step whose latency is nearest to the median of all measured ones, the first of
        several: one from the middle may be far from what a run is like."""
        middle = median(latencies_s)
        return min(self.steps, key=lambda step: abs(latencies_s[step.number] - middle))

    def spans_of(self, step: RecordedStep) -> list[Span]:
        spans = self.timeline.spans
        return [s for s in spans if s.start_ns < step.end_ns and s.end_ns > step.start_ns]


def asked_trace(asked: Mapping[str, Any], settings: Settings) -> str:
    """The trace that was asked for, or this model's usual one."""
    trace = asked["trace"]
    chosen = usual_trace(settings.model.name) if trace is None else str(trace)
    if asked["seed"] is not None and chosen != SYNTHETIC:
        raise ImpossibleSetting(
            f"--seed {asked['seed']} is of synthetic routing, and here the routing is that of a "
            f"trace: leave it out, or use --trace {SYNTHETIC}"
        )
    return chosen


def fitted(runs: Sequence[Settings], trace: str, asked: Mapping[str, Any]) -> Sequence[Settings]:
    """A short recording is played as far as it goes, unless a length was asked for. Runs that are
    compared get one length: that of the run for which the trace is shortest."""
    lengths = ("tokens", "warmup", "prompts")
    if trace in (SYNTHETIC, BUNDLED) or any(asked[name] is not None for name in lengths):
        return runs
    each = {(run.batch, run.phase): run for run in runs}  # other settings need no more tokens
    found = [shortened(trace, run) for run in each.values()]
    if all(run in runs for run in found):
        return runs
    least = min(found, key=lambda run: run.tokens)
    click.echo(
        f"the trace is short: {least.steps} steps after {least.warmup_steps} of warm-up, "
        f"placement from its first {least.profile_tokens} tokens",
        err=True,
    )
    length = {name: getattr(least, name) for name in ("tokens", "warmup", "profile_tokens")}
    return [replace(run, **length) for run in runs]


def announced_workload(trace: str, settings: Settings) -> Workload:
    """Says where the routing is from, and where a model is so small that its weights hardly
    matter."""
    workload = choose_workload(trace, settings)
    click.echo(f"routing: {workload.words}", err=True)
    size, link = settings.model.expert_bytes(settings.expert_dtype), settings.machine.pcie
    if size / (link.bandwidth_gb_s * GB) < link.latency_us * 1e-6:
        click.echo(
            f"note: an expert of {settings.model.name} has {size / 1e3:.0f} KB: on "
            f"{settings.machine.name} fixed costs (copies, kernels, decisions) outweigh its bytes, "
            "so hits say something here and times do not. For times that do, name a large model: "
            f"--model {LARGE_MODEL}",
            err=True,
        )
    return workload


def run_with_progress(
    settings: Settings, source: TraceSource, record: bool
) -> tuple[Result, Recording | None]:
    announce_compilation()
    recording = Recording(settings.warmup_steps) if record else None
    total = settings.warmup_steps + settings.steps
    with progress("simulating", total) as tick:

        def advance(count: int) -> None:
            tick(count)
            if recording is not None:
                recording.advance(count)

        timeline = recording.timeline if recording is not None else None
        full_s = full_token_s(settings, source)
        return simulate(settings, source, timeline, advance, full_s), recording


def routing_kind(result: Result) -> str:
    return f"{result.trace['origin']} routing"


def announce_compilation() -> None:
    if not compiled_before():
        click.echo("compiling the planners, first run only: about a minute", err=True)
