"""What link and CPU cost each other in captured decode steps, from what the conductor noted: when
the CPU computed which experts, and when which of them were copied in the background.

Two kinds of copies are kept apart. An expert that the CPU computes in the same layer, or has in the
layer before, lies in its caches, and they answer the link: that is slower, for both. Any other
expert comes from memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from moesaic.core.units import slowed_by
from moesaic.machines.cuda.captured_step import CapturedStep

_NARROW_NS = 10_000  # between two looks of the conductor: when a copy ended is known
_MOSTLY = 0.8  # of the CPU's time in a layer
_ENOUGH = 6  # samples of a median
_CPU_LAST = 3  # experts on the CPU with which it ends after the GPU


class Copy(NamedTuple):
    """Of expert `which` (layer * experts + expert); `watched`: its end is known."""

    which: int
    begun_ns: int
    ended_ns: int
    watched: bool

    def beside(self, begun_ns: int, ended_ns: int) -> int:
        """Nanoseconds in which both go on."""
        return max(min(self.ended_ns, ended_ns) - max(self.begun_ns, begun_ns), 0)


@dataclass(slots=True)
class LinkTimes:
    """Nanoseconds, one entry per copy or layer. `cached` and `plain`: of copies while no kernel
    reads over the link; `cpu_cached` and `cpu_plain`: thousandths that the CPU took longer beside
    such copies; `between_busy` and `between_idle`: from the CPU's sum to the next layer's routing,
    which the conductor saw while the link copied, or did not."""

    cached: list[int] = field(default_factory=list)
    plain: list[int] = field(default_factory=list)
    cpu_cached: list[float] = field(default_factory=list)
    cpu_plain: list[float] = field(default_factory=list)
    between_busy: list[int] = field(default_factory=list)
    between_idle: list[int] = field(default_factory=list)

    @property
    def cached_factor(self) -> float:
        """How many times as long a copy from the CPU's caches takes."""
        known = usual(self.cached), usual(self.plain)
        return max(known[0] / known[1], 1.0) if known[0] and known[1] else 1.0

    @property
    def busy_handover_us(self) -> float:
        busy, idle = usual(self.between_busy), usual(self.between_idle)
        return max(busy - idle, 0.0) / 1000 if busy and idle else 0.0


def usual(values: Sequence[float]) -> float:
    """The median of enough values; 0 of fewer."""
    return float(median(values)) if len(values) >= _ENOUGH else 0.0


def link_times(
    runs: Iterable[Sequence[CapturedStep]], experts: int, first_ns: float, each_ns: float
) -> LinkTimes:
    """Of runs of steps, each in turn. `experts`: of a layer; the CPU alone takes `first_ns` for a
    layer and `each_ns` for each of its experts."""
    found = LinkTimes()
    for steps in runs:
        copies = copies_of(steps)
        _note_layers(found, steps, copies, experts, first_ns, each_ns)
        _note_copies(found, steps, copies, experts)
    return found


def copies_of(steps: Sequence[CapturedStep]) -> list[Copy]:
    """In order; one begins when it is submitted or when the one before it ends. Where the end was
    not watched, it is taken to last as long as the others, within what is known."""
    every = [copy for step in steps for copy in step.copies]
    found: list[Copy] = []
    ended, watched = 0, list[int]()
    for copy in every:
        begun = max(copy.submitted, ended)
        narrow = copy.seen - copy.unseen < _NARROW_NS
        if narrow:
            watched.append(copy.seen - begun)
        lasting = begun + round(median(watched)) if watched else copy.seen
        ended = copy.seen if narrow else min(max(copy.unseen, lasting), copy.seen)
        ended = max(ended, begun)
        found.append(Copy(copy.which, begun, ended, narrow))
    return found


def _computed(steps: Sequence[CapturedStep], experts: int) -> Iterator[frozenset[int]]:
    """By layer, what the CPU computed in it and in the layer before."""
    before: frozenset[int] = frozenset()
    for step in steps:
        for layer, work in enumerate(step.work):
            now = frozenset(layer * experts + expert for expert in work.cpu)
            yield now | before
            before = now


def _note_layers(
    found: LinkTimes,
    steps: Sequence[CapturedStep],
    copies: Sequence[Copy],
    experts: int,
    first_ns: float,
    each_ns: float,
) -> None:
    cached = _computed(steps, experts)
    for step in steps:
        for times, work, held in zip(step.times, step.work, cached, strict=False):
            if not work.cpu or work.in_place:
                continue
            taken = times.cpu_ended - times.cpu_begun
            beside = [(c, c.beside(times.cpu_begun, times.cpu_ended)) for c in copies]
            from_cache = sum(ns for copy, ns in beside if copy.which in held)
            from_memory = sum(ns for _, ns in beside) - from_cache
            slowed = slowed_by(round(first_ns + each_ns * len(work.cpu)), taken)
            if from_cache > _MOSTLY * taken:
                found.cpu_cached.append(slowed)
            elif from_memory > _MOSTLY * taken:
                found.cpu_plain.append(slowed)
        for one, following in pairwise(step.times):
            if one.on_cpu >= _CPU_LAST and not one.transfers:
                between = following.routed - one.summed
                busy = any(c.begun_ns < following.routed < c.ended_ns for c in copies)
                (found.between_busy if busy else found.between_idle).append(between)


def _note_copies(
    found: LinkTimes, steps: Sequence[CapturedStep], copies: Sequence[Copy], experts: int
) -> None:
    """Those that no kernel reads beside; by the layer in which they begin."""
    layers = [
        (times, work, held)
        for (times, work), held in zip(
            ((t, w) for step in steps for t, w in zip(step.times, step.work, strict=True)),
            _computed(steps, experts),
            strict=True,
        )
    ]
    reads = [(times.planned, work) for times, work, _ in layers]
    for copy in copies:
        at = sum(times.planned <= copy.begun_ns for times, _, _ in layers) - 1
        if at < 0 or not copy.watched:
            continue
        during = [work for planned, work in reads[at:] if planned < copy.ended_ns]
        if any(work.in_place for work in during):
            continue
        own = copy.which in {
            (at % len(steps[0].work)) * experts + expert for expert in layers[at][1].cpu
        }
        if own:
            found.cached.append(copy.ended_ns - copy.begun_ns)
        elif copy.which not in layers[at][2]:
            found.plain.append(copy.ended_ns - copy.begun_ns)
