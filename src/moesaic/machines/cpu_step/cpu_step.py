"""Decode steps as one native call each: an executor beside the one that runs layer by layer.

Nothing is decided on a machine with one device, so the brain is asked only where tokens may run
again: it then sees every layer's routing after the step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from time import perf_counter_ns

import torch

from moesaic.core.body import Decider
from moesaic.core.offloading import CPU
from moesaic.core.report import LayerReport, Span, StepReport, Timeline, experts_span
from moesaic.core.rerun_decider import RerunDecider
from moesaic.core.view import View
from moesaic.kernels import _native
from moesaic.kernels.freed_memory import keep_freed_memory
from moesaic.machines.cpu_step.native_step import MAX_TOKENS, NativeStep
from moesaic.machines.cpu_step.step_description import why_layerwise
from moesaic.machines.cpu_step.step_result import LayerTimes, StepResult
from moesaic.machines.real.executor import Network, StepTimes
from moesaic.machines.real.forward_pass import ForwardPass
from moesaic.machines.real.routing_adapter import RoutingAdapter
from moesaic.machines.real.step_watch import StepWatch
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.decoder import finite_or_nan


def cpu_step(network: Network, pool: _native.Pool, view: View, timeline: Timeline) -> CpuStep | str:
    """The executor, or why there is none. `pool` has the workers of the layerwise executor."""
    decoder = network.decoder
    if decoder.dense is not None:
        decoder.dense.use(pool)
        keep_freed_memory()
    why = why_layerwise(decoder, network.store, network.cache.kv_dtype)
    if why is not None:
        return why
    step = NativeStep(decoder, network.store, network.cache, pool)
    return CpuStep(step, network.cache, network.adapter, view, timeline)


class CpuStep:
    """An `Executor`. `adapter` says how many experts of a token's ranking a routing has; `view` is
    what a brain sees of a machine on which nothing moves."""

    name = "cpu_step"
    bytes_moved = 0

    def __init__(
        self, step: NativeStep, cache: BlockCache, adapter: RoutingAdapter, view: View,
        timeline: Timeline,
    ) -> None:  # fmt: skip
        self._step, self._cache, self._adapter = step, cache, adapter
        self._view, self._timeline = view, timeline
        self.watch: StepWatch | None = None
        self._lane_ns = Counter[str]()

    def refuses(self, work: ForwardPass, brain: Decider) -> str | None:
        if work.ahead:
            return "a decode step is a call of the calling thread"
        if work.reused is not None and not work.reused.complete:
            return "its routers choose for all tokens or for none"
        if not work.decodes:
            return "it reads no prompts"
        if len(work.pieces) > MAX_TOKENS or work.longest > self._cache.max_length:
            return f"it decodes up to {MAX_TOKENS} sequences, within the KV cache"
        return None

    def enter(self) -> None:
        """There are no slots."""

    def leave(self) -> None:
        """There are no slots."""

    def submit(self, number: int, work: ForwardPass, brain: Decider) -> None:
        """The whole step."""
        started = perf_counter_ns()
        replay = self._step.replay_of(work)
        forced = None if replay is None else self._step.forced(replay)
        counts = None if work.counts is None else torch.from_numpy(work.counts)
        began = perf_counter_ns()
        result = self._step.run(work, counts, forced)
        self._began, self._ended = began, perf_counter_ns()
        for slot in work.slots:
            self._cache.advance(slot, 1)
        reports = _reports(result)
        if work.listener is not None or isinstance(brain, RerunDecider):
            for each in reports:
                routing = result.routing(each.layer, self._adapter.ranks, number)
                if work.listener is not None:
                    work.listener(routing)
                if isinstance(brain, RerunDecider):
                    brain.decide(routing, self._view)
                    brain.learn(routing, each)
        if self.watch is not None:
            for each in reports:
                self.watch.routed(result.routing(each.layer, 0, number))
        replayed = 0 if forced is None else began - started
        end = perf_counter_ns()
        self._step_times = self._times(result.times, end - started, replayed)
        self._lane_ns[CPU] += self._ended - began
        self._report = StepReport(started, end, len(work.pieces), reports)
        for span in self._spans(result) if self._timeline.enabled else ():
            self._timeline.add(span)
        self._output = finite_or_nan(result.logits)

    def collect(self) -> torch.Tensor:
        return self._output

    def abandon(self) -> None:
        """A step that was not collected has left nothing behind."""

    def report(self) -> StepReport:
        return self._report

    @property
    def times(self) -> StepTimes:
        return self._step_times

    def trace(self) -> None:
        """Nothing is captured."""
        return

    @property
    def busy_ns(self) -> Mapping[str, int]:
        return self._lane_ns

    def close(self) -> None:
        """The workers belong to the layerwise executor."""

    def _times(self, layers: list[LayerTimes], step_ns: int, replayed: int) -> StepTimes:
        experts = sum(each.ended - each.computing for each in layers)
        routers = sum(each.computing - each.routing for each in layers)
        network = self._ended - self._began - experts
        return StepTimes(step_ns, network, experts, routers, replayed)

    def _spans(self, result: StepResult) -> Iterator[Span]:
        """The network and the experts take turns."""
        tokens, began = result.ids.shape[1], self._began
        times = result.times
        for layer, (ids, each) in enumerate(zip(result.ids, times, strict=True)):
            used = ids[ids >= 0]
            yield Span(CPU, "dense", began, each.computing, layer, -1, tokens)
            experts = tuple(sorted(set(used.tolist())))
            yield experts_span(CPU, each.computing, each.ended, layer, experts, len(used))
            began = each.ended
        yield Span(CPU, "dense", began, self._ended, len(times), -1, tokens)


def _reports(result: StepResult) -> tuple[LayerReport, ...]:
    layers = zip(result.times, result.active(), strict=True)
    return tuple(
        LayerReport(layer, times.computing, times.ended, active, 0, 0)
        for layer, (times, active) in enumerate(layers)
    )
