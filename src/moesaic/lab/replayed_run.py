"""Running a model on the routing of a trace: what is measured is the machine under realistic skew,
not what random routers happen to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median

from moesaic.core.report import StepReport
from moesaic.core.units import NS_PER_S
from moesaic.engine.runner import Runner
from moesaic.machines.real.executor import StepTimes
from moesaic.machines.real.forward_pass import GREEDY, ForwardPass, Piece
from moesaic.workloads.steps import StepRouting


@dataclass(slots=True)
class MeasuredRun:
    """Steps of a real run: what each reported, and where its time went."""

    reports: list[StepReport] = field(default_factory=list)
    times: list[StepTimes] = field(default_factory=list)
    bytes_moved: int = 0

    @property
    def latencies_s(self) -> list[float]:
        return [report.latency_ns / NS_PER_S for report in self.reports]

    @property
    def median_s(self) -> float:
        return median(self.latencies_s)

    @property
    def hit_rate(self) -> float:
        layers = [layer for report in self.reports for layer in report.layers]
        return sum(layer.hits for layer in layers) / sum(layer.active for layer in layers)

    def overhead_us(self, layers: int) -> float:
        """The engine's own time per routed layer: the median step's."""
        return median(cost.overhead_ns for cost in self.times) / layers / 1000

    def router_us(self, layers: int) -> float:
        """Norms and routers, the same way."""
        return median(cost.router_ns for cost in self.times) / layers / 1000


def replay_steps(
    runner: Runner,
    steps: Iterable[StepRouting],
    warmup: int = 0,
    advance: Callable[[int], None] = lambda steps: None,
) -> MeasuredRun:
    """A sequence that brings one token grows in the KV cache, which begins again when it is full; a
    prompt is read on an empty cache."""
    measured, before = MeasuredRun(), 0
    for number, routed in enumerate(steps):
        if number == warmup:
            before = runner.bytes_moved
        runner.step(ForwardPass(_pieces(runner, routed, number), replay=routed.layer))
        if number >= warmup:
            assert runner.report is not None, "a step was just done"
            measured.reports.append(runner.report)
            measured.times.append(runner.machine.times)
        advance(1)
    measured.bytes_moved = runner.bytes_moved - before
    for slot in range(runner.cache.slots):
        runner.free_slot(slot)
    return measured


def _pieces(runner: Runner, routed: StepRouting, number: int) -> list[Piece]:
    vocabulary = runner.decoder.architecture.spec.vocab_size
    pieces = []
    for slot, (count, _) in enumerate(routed.step.sequences):
        if count > 1 or runner.cache.length(slot) + count > runner.cache.max_length:
            runner.free_slot(slot)
        first = 31 * number + 7 * slot
        tokens = [(first + i) % vocabulary for i in range(count)]
        pieces.append(Piece(slot, tokens, sampling=GREEDY))
    return pieces
