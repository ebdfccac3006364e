"""Passes as CUDA graphs: an executor beside the one that runs layer by layer.

Both use the same slots, one at a time. The one that runs next takes them over as the other has left
them; copies under way are waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import torch

from moesaic.core.body import Decider
from moesaic.core.native_brain import NativeBrain
from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.report import LayerReport, StepReport, Timeline
from moesaic.core.rerun_decider import RerunDecider
from moesaic.machines.captured.captured_spans import CapturedSpans
from moesaic.machines.captured.captured_step import CapturedStep
from moesaic.machines.captured.conductor import LayerTimes
from moesaic.machines.captured.graph_steps import GraphMemory, GraphSteps
from moesaic.machines.real.executor import Network, StepTimes
from moesaic.machines.real.forward_pass import ForwardPass
from moesaic.machines.real.ledger import Ledger
from moesaic.machines.real.step_watch import StepWatch

Native = Callable[[], NativeBrain | None]


class Captured:
    """An `Executor`. `native` is the brain's state and functions, or None where those alone do not
    decide; `brain` is its handle. `ledger` lends the slots, which are a part of `memory`. There is
    nothing for a `watch` to see: what a step did is in its `trace`."""

    name = "captured"

    def __init__(
        self, network: Network, memory: GraphMemory, ledger: Ledger[Any], brain: Decider,
        native: Native, timeline: Timeline,
    ) -> None:  # fmt: skip
        self._decoder, self._cache, self._store, adapter = network
        self._memory, self._ledger = memory, ledger
        self._brain, self._native, self._timeline = brain, native, timeline
        self._ranks, self._gates = adapter.ranks, adapter.gates
        self._made: tuple[NativeBrain, GraphSteps] | None = None
        self._moved_before = 0  # bytes, by conductors that are gone
        self.watch: StepWatch | None = None
        self._lane_ns = Counter[str]()  # of steps whose report was asked for
        self._spans, self._traced = CapturedSpans(self._store.experts), False
        self._begun: ForwardPass | None = None
        self._times_ns, self._tokens, self._late = (0, 0), 0, False  # of the last step
        self._report: StepReport | None = None  # of the same, once it was asked for

    def refuses(self, work: ForwardPass, brain: Decider) -> str | None:
        return next(self._refusals(work, brain), None)

    def _refusals(self, work: ForwardPass, brain: Decider) -> Iterator[str]:
        decides = brain.brain if isinstance(brain, RerunDecider) else brain
        if decides is not self._brain or self._native() is None:
            yield "its plans are made by functions of Python"
        if work.listener is not None:
            yield "a listener needs every layer's routing in Python"
        if work.reused is not None and not work.reused.complete:
            yield "its routers choose for all tokens or for none"
        if work.longest > self._cache.max_length:
            yield "a sequence is longer than its KV cache"
        if work.ahead and (not self.has_slots or self._timeline.enabled or not work.decodes):
            yield "the calling thread is needed before or after it"
        steps = self._steps
        if work.decodes:
            if len(work.pieces) > steps.batch:
                yield f"it decodes up to {steps.batch} sequences"
            if work.ahead and not steps.is_captured(work):
                yield "capturing it takes long"
        elif not steps.can_read(work):
            yield f"it reads up to {steps.rows} tokens"

    @property
    def has_slots(self) -> bool:
        return self._ledger.lent

    def enter(self) -> None:
        if not self.has_slots:
            self._ledger.lend(self._steps.load_slots)

    def leave(self) -> None:
        if self.has_slots:
            assert self._made is not None, "the slots were taken"
            self._ledger.take_back(self._made[1].slots())

    def submit(self, number: int, work: ForwardPass, brain: Decider) -> None:
        """Decoded tokens need no more of this thread; of others it is the whole pass."""
        work, decider = self._as_replayed(work), brain if isinstance(brain, RerunDecider) else None
        self._begun = work
        try:
            traced = self._timeline.enabled
            if traced and not self._traced:
                self._steps.forget_copies()
            self._traced = traced
            if work.decodes:
                self._steps.begin(number, work, decider)
            else:
                self._output = self._steps.read(number, work, decider)
        except BaseException:
            self._begun = None
            self._give_up()
            raise

    def collect(self) -> torch.Tensor:
        try:
            work, self._begun = self._begun, None
            assert work is not None, "a step was begun"
            steps = self._steps
            if work.decodes:
                self._output = steps.finish(ahead=not self._traced)
            self._ended(work, steps.started_ns)
        except BaseException:
            self._give_up()
            raise
        if self._traced:
            for span in self._spans.of(self.trace(), self._timeline.engine):
                self._timeline.add(span)
        return self._output

    def abandon(self) -> None:
        """A step that was begun is waited for."""
        work, self._begun = self._begun, None
        if self._made is None:
            return
        if work is None or not work.decodes:
            self._steps.abandon()
            return
        try:
            self._steps.finish(ahead=False)
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Its conductor may be of no use any more."""
        self.leave()
        self.close()

    @property
    def _steps(self) -> GraphSteps:
        native = self._native()
        assert native is not None, "a brain that decides natively"
        if self._made is None or self._made[0] is not native:
            assert not self.has_slots, "the brain's state has moved under a conductor"
            self.close()
            steps = GraphSteps(
                self._decoder, self._cache, self._memory, native, self._ranks, self._gates
            )
            self._made = native, steps
        return self._made[1]

    def _as_replayed(self, work: ForwardPass) -> ForwardPass:
        """The same pass, with what its tokens bring along as a routing to replay."""
        if work.reused is None:
            return work
        replay = work.replayed(self._decoder)
        return ForwardPass(work.pieces, replay, work.counts, ahead=work.ahead)

    def _ended(self, work: ForwardPass, started_ns: int) -> None:
        for each in work.pieces:
            self._cache.advance(each.slot, len(each.tokens))
            self._cache.blocks_placed(each.slot, each.first + len(each.tokens))
        self._times_ns, self._tokens = (started_ns, perf_counter_ns()), work.step.tokens
        self._late, self._report = work.ahead, None

    def report(self) -> StepReport:
        if self._report is None:
            started, ended = self._times_ns
            times = self._steps.times
            if self._late:
                ended = min(ended, self._steps.ended_ns(times))
            self._report = StepReport(started, ended, self._tokens, self._reports(times))
            self._lane_ns[GPU] += self._steps.busy_ns(times)
            self._lane_ns[CPU] += sum(each.cpu_ended - each.cpu_begun for each in times)
        return self._report

    @property
    def times(self) -> StepTimes:
        report = self.report()
        experts = sum(layer.end_ns - layer.start_ns for layer in report.layers)
        return StepTimes(report.latency_ns, report.latency_ns - experts, experts)

    def trace(self) -> CapturedStep:
        return self._steps.trace(self._times_ns[1], self._tokens)

    def _reports(self, times: Sequence[LayerTimes]) -> tuple[LayerReport, ...]:
        size = self._store.kernel.block_bytes
        return tuple(
            LayerReport(layer, t.planned, t.summed, t.on_gpu + t.on_cpu, t.hits, t.transfers * size)
            for layer, t in enumerate(times)
        )

    @property
    def bytes_moved(self) -> int:
        return self._moved_before + (self._made[1].bytes_moved if self._made else 0)

    @property
    def busy_ns(self) -> Mapping[str, int]:
        """Copies and reads in place count as long as a copy takes alone."""
        copies = self.bytes_moved // self._store.kernel.block_bytes
        return Counter(self._lane_ns) + Counter({PCIE: copies * self._ledger.copier.duration_ns})

    def close(self) -> None:
        if self._made is not None:
            (_, steps), self._made = self._made, None  # closed once, even if that fails
            self._moved_before += steps.bytes_moved
            steps.close()
