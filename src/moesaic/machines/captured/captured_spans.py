"""A captured step as spans of the timeline, with nothing left white that has a reason: what the GPU
computes and what it waits for, the CPU's experts, the link, the conductor between them."""

from __future__ import annotations

from collections.abc import Iterator

from moesaic.core.offloading import CPU, GPU
from moesaic.core.report import AWAIT_PLAN, AWAIT_SUM, ENGINE, Span, experts_span
from moesaic.machines.captured.captured_step import CapturedStep, clock_bounds
from moesaic.machines.captured.conductor import LayerTimes, LayerWork
from moesaic.machines.captured.link_spans import LinkSpans
from moesaic.machines.captured.stamps import LayerStamps, StepStamps


class CapturedSpans:
    """Steps in turn; a copy may reach from one into the next. `experts`: of a layer."""

    def __init__(self, experts: int) -> None:
        self._link = LinkSpans(experts)
        self.uncertainty_ns = 0  # of the GPU's times of the last step

    def of(self, step: CapturedStep, engine: bool) -> list[Span]:
        """`engine`: with the conductor's lane."""
        bounds = clock_bounds(step)
        self.uncertainty_ns = bounds.uncertainty_ns
        stamps = _shifted(step.stamps, bounds.offset)
        found = [*_gpu(step, stamps), *_cpu(step)]
        found += self._link.of(step, stamps.layers)
        if engine:
            found += _engine(step, stamps)
        return [span for span in found if span.end_ns > span.start_ns]


def _shifted(stamps: StepStamps, offset: int) -> StepStamps:
    layers = [LayerStamps(*(time + offset for time in layer)) for layer in stamps.layers]
    return StepStamps(stamps.begun + offset, layers, stamps.ended + offset)


def _gpu(step: CapturedStep, stamps: StepStamps) -> Iterator[Span]:
    """Its stream does one thing after the other: every moment from its first kernel to its last
    is in one of these."""
    since = stamps.begun
    for layer, (at, work) in enumerate(zip(stamps.layers, step.work, strict=True)):
        yield Span(GPU, "dense", since, at.routed, layer, -1, step.tokens)
        free = at.shared if at.routed < at.shared <= at.planned else at.routed
        yield Span(GPU, "dense", at.routed, free, layer, -1, step.tokens)  # shared experts
        yield Span(GPU, AWAIT_PLAN, free, at.planned, layer, -1, 0)
        yield from _gpu_experts(layer, at, work)
        idle = at.computed if work.gpu else at.planned
        yield Span(GPU, AWAIT_SUM, idle, at.summed, layer, -1, 0)
        since = at.summed
    yield Span(GPU, "dense", since, stamps.ended, -1, -1, step.tokens)  # the head


def _gpu_experts(layer: int, at: LayerStamps, work: LayerWork) -> Iterator[Span]:
    """Those that are there and those that arrive apart, where the step computes them apart."""
    turns = [(at.planned, at.computed, 0, len(work.gpu))]
    if at.planned < at.there <= at.computed and 0 < work.there < len(work.gpu):
        turns = [
            (at.planned, at.there, 0, work.there),
            (at.there, at.computed, work.there, len(work.gpu)),
        ]
    for start, end, first, last in turns:
        if last > first:
            pairs = sum(work.gpu_pairs[first:last])
            yield experts_span(GPU, start, end, layer, tuple(work.gpu[first:last]), pairs)


def _cpu(step: CapturedStep) -> Iterator[Span]:
    for layer, (times, work) in enumerate(zip(step.times, step.work, strict=True)):
        if work.cpu:
            begun, ended, pairs = times.cpu_begun, times.cpu_ended, sum(work.cpu_pairs)
            yield experts_span(CPU, begun, ended, layer, tuple(work.cpu), pairs)


def _engine(step: CapturedStep, stamps: StepStamps) -> Iterator[Span]:
    """Launching the step, the conductor's part of every layer, the logits on their way back."""
    yield Span(ENGINE, "launch", step.started_ns, stamps.begun, -1, -1, 0)
    free = stamps.begun  # the conductor looks ahead while workers and the GPU go on
    for layer, (times, at) in enumerate(zip(step.times, stamps.layers, strict=True)):
        for kind, start, end in _conducted(times, at):
            if max(start, free) < end:
                yield Span(ENGINE, kind, max(start, free), end, layer, -1, 0)
                free = end
    yield Span(ENGINE, "return", max(stamps.ended, free), step.ended_ns, -1, -1, 0)


def _conducted(times: LayerTimes, at: LayerStamps) -> tuple[tuple[str, int, int], ...]:
    """A sum is on its way where the GPU waits for one."""
    summing = max(times.summing, at.computed) if times.cpu_ended else at.summed
    return (
        ("hand-over", at.routed, times.routed),
        ("plan", times.routed, times.planned),
        ("start", times.planned, times.submitted),
        ("look-ahead", times.submitted, times.looked_ahead),
        ("sum", summing, at.summed),
    )
