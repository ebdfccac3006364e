"""Decoding by native steps, beside a machine that is driven layer by layer: what a step reports.

Nothing is decided on a machine with one device, so the brain is not asked; a wrapper around it
that records routings sees them all after the step."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter_ns
from typing import NamedTuple

import torch

from moesaic.core.body import Decider
from moesaic.core.offloading import CPU
from moesaic.core.report import LayerReport, Span, StepReport, experts_span
from moesaic.core.view import View
from moesaic.machines.real.native_step import NativeStep
from moesaic.machines.real.real_machine import ForwardPass, StepTimes
from moesaic.machines.real.routing_adapter import RoutingAdapter
from moesaic.machines.real.step_result import LayerTimes, StepResult
from moesaic.models.decoder import finite_or_nan
from moesaic.models.kv_cache import ContiguousCache


class DoneStep(NamedTuple):
    logits: torch.Tensor  # [tokens, vocabulary]
    report: StepReport
    times: StepTimes


class NativeDecoding:
    """`brain` is the unwrapped one; `adapter` says how many experts of a token's
    ranking a routing has."""

    def __init__(
        self, step: NativeStep, cache: ContiguousCache, brain: Decider, adapter: RoutingAdapter
    ) -> None:
        self._step, self._cache, self._brain, self._adapter = step, cache, brain, adapter
        self._result: StepResult | None = None
        self._began = self._ended = 0  # of the last native call, in ns

    def takes(self, work: ForwardPass) -> bool:
        if work.reused is not None and not work.reused.complete:
            return False
        return work.decoded is not None and self._step.takes(work.decoded)

    def step(self, number: int, work: ForwardPass, brain: Decider, view: View) -> DoneStep:
        tokens = work.decoded
        assert tokens is not None, "tokens to decode"
        started = perf_counter_ns()
        replay = self._step.replay_of(work)
        forced = None if replay is None else self._step.forced(replay)
        counts = None if work.counts is None else torch.from_numpy(work.counts)
        self._began = perf_counter_ns()
        self._result = result = self._step.run(tokens, counts, forced)
        self._ended = perf_counter_ns()
        for slot in tokens.slots:
            self._cache.advance(slot, 1)
        reports = _reports(result)
        if brain is not self._brain:
            for each in reports:
                routing = result.routing(each.layer, self._adapter.ranks, number)
                brain.decide(routing, view)
                brain.learn(routing, each)
        replayed = 0 if forced is None else self._began - started
        end = perf_counter_ns()
        times = self._times(result.times, end - started, replayed)
        report = StepReport(started, end, len(tokens.numbers), reports)
        return DoneStep(finite_or_nan(result.logits), report, times)

    def _times(self, layers: list[LayerTimes], step_ns: int, replayed: int) -> StepTimes:
        experts = sum(each.ended - each.computing for each in layers)
        routers = sum(each.computing - each.routing for each in layers)
        network = self._ended - self._began - experts
        return StepTimes(step_ns, network, experts, routers, replayed)

    def spans(self) -> Iterator[Span]:
        """Of the last step: the network and the experts take turns."""
        assert self._result is not None, "a step has been done"
        tokens, began = self._result.ids.shape[1], self._began
        times = self._result.times
        for layer, (ids, each) in enumerate(zip(self._result.ids, times, strict=True)):
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
