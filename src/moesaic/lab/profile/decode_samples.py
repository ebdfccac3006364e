"""Decode steps of a machine with a GPU, taken apart: what each layer took, and with how many
experts where. From reports, so that it is the same for captured steps and for those that Python
drives layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean, median
from time import perf_counter_ns
from typing import Any

from moesaic.core.report import StepReport
from moesaic.engine.runner import Runner
from moesaic.lab.profile.profile_routing import ProfileRouting
from moesaic.machines.captured.captured_step import CapturedStep
from moesaic.machines.real.forward_pass import GREEDY, ForwardPass, Piece

STEPS, WARMUP = 24, 6


@dataclass(frozen=True, slots=True)
class LayerSample:
    """Nanoseconds: `experts_ns` until the CPU's sum was there, `between_ns` from there to the next
    layer's plan (attention and router), `whole_ns` from plan to plan."""

    on_cpu: int
    transfers: int
    experts_ns: int
    between_ns: int
    whole_ns: int


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """Steps under one system: layers that another one follows, and medians of the rest."""

    layers: list[LayerSample]
    before_ns: float  # from a step's begin to its first plan
    after_ns: float  # from its last layer's sum to its end
    plan_ns: float  # deciding one layer
    ahead_ns: float  # deciding what to move in the background, per layer
    active: float  # experts per layer
    captured: list[CapturedStep] = field(default_factory=list)  # where steps are


def measure_decode(runner: Runner, routing: ProfileRouting, batch: int = 1) -> DecodeRun:
    spec, machine, planning = runner.decoder.architecture.spec, runner.machine, _Planning(runner)
    reports: list[StepReport] = []
    captured: list[CapturedStep | None] = []
    layers: list[LayerSample] = []
    with planning.timed():
        for step, routed in enumerate(routing.steps(batch, WARMUP + STEPS)):
            token = step % spec.vocab_size
            inputs = [Piece(slot, [token], sampling=GREEDY) for slot in range(batch)]
            planning.begin()
            runner.step(ForwardPass(inputs, replay=routed.layer))
            assert runner.report is not None, "a step was just done"
            trace = machine.trace()
            captured.append(trace if isinstance(trace, CapturedStep) else None)
            times = trace.times if isinstance(trace, CapturedStep) else ()
            if step >= WARMUP:
                reports.append(runner.report)
                size = machine.store.kernel.block_bytes
                layers += _samples(runner.report, size, times)
                planning.note(times)
    for slot in range(batch):
        runner.free_slot(slot)
    return DecodeRun(
        layers,
        median(report.layers[0].start_ns - report.start_ns for report in reports),
        median(report.end_ns - report.layers[-1].end_ns for report in reports),
        median(planning.decided),
        median(planning.looked) if planning.looked else 0.0,
        mean(layer.active for report in reports for layer in report.layers),
        [step for step in captured[WARMUP:] if step is not None],
    )


def _samples(report: StepReport, size: int, times: Sequence[Any]) -> Iterator[LayerSample]:
    """`times`: the conductor's, where there is one; it knows which experts the CPU had."""
    for at, (layer, following) in enumerate(pairwise(report.layers)):
        moved = layer.bytes_moved // size
        missing = layer.active - layer.hits - layer.coming - moved
        yield LayerSample(
            times[at].on_cpu if times else missing,
            moved,
            layer.end_ns - layer.start_ns,
            following.start_ns - layer.end_ns,
            following.start_ns - layer.start_ns,
        )


class _Planning:
    """How long the brain takes: by the conductor's clock, or, where Python asks it, by this."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.decided: list[float] = []
        self.looked: list[float] = []
        self._taken: dict[str, list[int]] = {}

    @contextmanager
    def timed(self) -> Iterator[None]:
        brain: Any = self._runner.brain
        names = ("decide", "look_ahead")
        usual = [getattr(brain, name) for name in names]
        for name, call in zip(names, usual, strict=True):
            setattr(brain, name, self._timed(name, call))
        try:
            yield
        finally:
            for name, call in zip(names, usual, strict=True):
                setattr(brain, name, call)

    def begin(self) -> None:
        self._taken = {"decide": [], "look_ahead": []}

    def note(self, times: Sequence[Any]) -> None:
        """`times`: of the step's layers, by the conductor's clock, where there is one."""
        if times:
            self.decided += [t.planned - t.routed for t in times]
            self.looked += [t.looked_ahead - t.submitted for t in times]
            return
        self.decided += self._taken["decide"]
        self.looked += self._taken["look_ahead"]

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            started = perf_counter_ns()
            try:
                return call(*args, **options)
            finally:
                self._taken[name].append(perf_counter_ns() - started)

        return timed


def line_by_count(points: Iterable[tuple[int, float]]) -> tuple[float, float]:
    """Offset (not below 0) and slope over medians by count, each weighted by how often it came."""
    groups: dict[int, list[float]] = {}
    for count, value in points:
        groups.setdefault(count, []).append(value)
    assert groups, "nothing was measured"
    known = [(count, median(values), len(values)) for count, values in sorted(groups.items())]
    offset, slope = _fitted(known)
    if slope > 0 and offset >= 0:
        return offset, slope
    return 0.0, _through_origin(known)


def _fitted(known: Sequence[tuple[int, float, int]]) -> tuple[float, float]:
    total = sum(weight for *_, weight in known)
    x = sum(count * weight for count, _, weight in known) / total
    y = sum(value * weight for _, value, weight in known) / total
    spread = sum(weight * (count - x) ** 2 for count, _, weight in known)
    if spread == 0:
        return -1.0, 0.0
    slope = sum(w * (count - x) * (value - y) for count, value, w in known) / spread
    return y - slope * x, slope


def _through_origin(known: Sequence[tuple[int, float, int]]) -> float:
    squares = sum(weight * count**2 for count, _, weight in known)
    return sum(weight * count * value for count, value, weight in known) / max(squares, 1)
