"""What link and CPU cost each other in captured decode steps, from what the conductor noted: when
the CPU computed which experts, and when which of them were copied in the background.

Two kinds of copies are kept apart. An expert that the CPU computes in the same layer, or has in the
layer before, lies in its caches, and they answer the link: that is slower, for both. Any other
expert comes from memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from moesaic.core.units import NS_PER_US, slowed_by
from moesaic.machines.captured.captured_step import CapturedStep
from moesaic.machines.captured.conductor import LayerTimes, LayerWork

_NARROW_NS = 10_000  # between two looks of the conductor: when a copy ended is known
_MOSTLY = 0.8  # of the CPU's time in a layer
_ENOUGH = 6  # samples of a median
_CPU_LAST = 3  # experts on the CPU with which it ends after the GPU


class Copy(NamedTuple):
    """A copy of expert `which` (layer * experts + expert); `watched`: its end is known."""

    which: int
    begun_ns: int
    ended_ns: int
    watched: bool

    def beside(self, begun_ns: int, ended_ns: int) -> int:
        """Nanoseconds in which both go on."""
        return max(min(self.ended_ns, ended_ns) - max(self.begun_ns, begun_ns), 0)


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """Medians of `LinkTimes`; nothing, or a factor of 1, where too little was seen."""

    cached_factor: float = 1.0  # of a copy from the CPU's caches
    cpu_cached: int = 0  # thousandths that the CPU takes longer beside one
    busy_handover_us: float = 0.0  # more between a layer's sum and the next routing, beside copies
    cached_handover_us: float = 0.0


NO_LINK_COSTS = LinkCosts()


@dataclass(slots=True)
class LinkTimes:
    """Nanoseconds, one entry per copy or layer. `cached` and `plain`: of copies while no kernel
    reads over the link; `cpu_cached` and `cpu_plain`: thousandths that the CPU took longer beside
    such copies; `between_cached`, `between_plain`, `between_idle`: from the CPU's sum to the next
    layer's routing, which the conductor saw beside such a copy, or beside none."""

    cached: list[int] = field(default_factory=list)
    plain: list[int] = field(default_factory=list)
    cpu_cached: list[float] = field(default_factory=list)
    cpu_plain: list[float] = field(default_factory=list)
    between_cached: list[int] = field(default_factory=list)
    between_plain: list[int] = field(default_factory=list)
    between_idle: list[int] = field(default_factory=list)

    def costs(self) -> LinkCosts:
        cached, plain = usual(self.cached), usual(self.plain)
        return LinkCosts(
            max(cached / plain, 1.0) if cached and plain else 1.0,
            max(round(usual(self.cpu_cached)), 0),
            self._longer_us(self.between_plain),
            self._longer_us(self.between_cached),
        )

    def _longer_us(self, busy: Sequence[int]) -> float:
        taken, idle = usual(busy), usual(self.between_idle)
        return max(taken - idle, 0.0) / NS_PER_US if taken and idle else 0.0


def usual(values: Sequence[float]) -> float:
    """The median of enough values; 0 of fewer."""
    return float(median(values)) if len(values) >= _ENOUGH else 0.0


def link_times(
    runs: Iterable[Sequence[CapturedStep]], experts: int, first_ns: float, each_ns: float
) -> LinkTimes:
    """Link times from runs of steps, each in turn. `experts`: of a layer; the CPU alone takes
    `first_ns` for a layer and `each_ns` for each of its experts."""
    found = LinkTimes()
    for steps in runs:
        layers, copies = _layers_of(steps, experts), copies_of(steps)
        for layer in layers:
            if layer.own and not layer.work.in_place:
                _note_cpu(found, layer, copies, round(first_ns + each_ns * len(layer.own)))
        for layer, following in pairwise(layers):
            if len(layer.own) >= _CPU_LAST and not layer.work.in_place and not layer.last:
                _note_between(found, layer, following, copies)
        _note_copies(found, layers, copies)
    return found


def copies_of(steps: Sequence[CapturedStep]) -> list[Copy]:
    """The copies in order; one begins when it is submitted or when the one before it ends. Where
    the end was not watched, it is taken to last as long as the others, within what is known."""
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


class _Layer(NamedTuple):
    """`own`: experts that the CPU computes in it; `held`: those, and those of the layer before."""

    times: LayerTimes
    work: LayerWork
    own: frozenset[int]
    held: frozenset[int]
    last: bool  # of its step


def _layers_of(steps: Sequence[CapturedStep], experts: int) -> list[_Layer]:
    found: list[_Layer] = []
    before: frozenset[int] = frozenset()
    for step in steps:
        for layer, (times, work) in enumerate(zip(step.times, step.work, strict=True)):
            own = frozenset(layer * experts + expert for expert in work.cpu)
            found.append(_Layer(times, work, own, own | before, layer + 1 == len(step.work)))
            before = own
    return found


def _note_cpu(found: LinkTimes, layer: _Layer, copies: Sequence[Copy], alone_ns: int) -> None:
    """Note a layer in which the CPU computes and no kernel reads over the link."""
    begun, ended = layer.times.cpu_begun, layer.times.cpu_ended
    from_caches = sum(c.beside(begun, ended) for c in copies if c.which in layer.held)
    from_memory = sum(c.beside(begun, ended) for c in copies if c.which not in layer.held)
    slowed, mostly = slowed_by(alone_ns, ended - begun), _MOSTLY * (ended - begun)
    if from_caches > mostly:
        found.cpu_cached.append(slowed)
    elif from_memory > mostly:
        found.cpu_plain.append(slowed)


def _note_between(
    found: LinkTimes, layer: _Layer, following: _Layer, copies: Sequence[Copy]
) -> None:
    """Note two layers, in the first of which the CPU ended last."""
    routed = following.times.routed
    between = routed - layer.times.summed
    copied = [c.which for c in copies if c.begun_ns < routed < c.ended_ns]
    if not copied:
        found.between_idle.append(between)
    elif copied[0] in layer.held:
        found.between_cached.append(between)
    else:
        found.between_plain.append(between)


def _note_copies(found: LinkTimes, layers: Sequence[_Layer], copies: Sequence[Copy]) -> None:
    """Those whose end is known, and beside which no kernel reads; by the layer they begin in."""
    starts = [layer.times.planned for layer in layers]
    for copy in copies:
        first, after = bisect_right(starts, copy.begun_ns) - 1, bisect_right(starts, copy.ended_ns)
        if first < 0 or not copy.watched or any(each.work.in_place for each in layers[first:after]):
            continue
        taken, layer = copy.ended_ns - copy.begun_ns, layers[first]
        if copy.which in layer.own:
            found.cached.append(taken)
        elif copy.which not in layer.held:
            found.plain.append(taken)
