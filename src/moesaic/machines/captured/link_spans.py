"""What the link did in a captured step: copies, and experts that GPU kernels read in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

from moesaic.core.offloading import PCIE
from moesaic.core.report import Span
from moesaic.machines.captured.captured_step import CapturedStep
from moesaic.machines.captured.conductor import CopyTimes
from moesaic.machines.captured.stamps import LayerStamps

_NARROW_NS = 10_000  # between two looks of the conductor
_KEPT = 64  # durations

Interval = tuple[int, int]


class LinkSpans:
    """Copies end in order, each between two looks of the conductor, which looks all the time but
    while it computes with the CPU's workers or decides. Where these are far apart, a copy is drawn
    as long as those that were watched, within its bounds; several that ended between two looks
    share the time. Copies and reads in place share the link; where both run, the lane shows the
    copy."""

    def __init__(self, experts: int) -> None:
        self._experts = experts
        self._edge = 0  # everything before it has been reported
        self._durations: list[int] = []

    def of(self, step: CapturedStep, stamps: Sequence[LayerStamps]) -> list[Span]:
        looks = Counter(copy.seen for copy in step.copies)
        copies = list[Span]()
        for copy in step.copies:
            self._note(copy, looks)
            copies.append(self._copy(copy, looks[copy.seen]))
            looks[copy.seen] -= 1
        taken = [(span.start_ns, span.end_ns) for span in copies]
        found = sorted((*copies, *_reads(step, stamps, taken)), key=lambda span: span.start_ns)
        self._edge = max([self._edge, *(span.end_ns for span in found)])
        return found

    def _note(self, copy: CopyTimes, looks: Counter[int]) -> None:
        """How long it took, if that was watched."""
        if looks[copy.seen] == 1 and copy.seen - copy.unseen < _NARROW_NS:
            taken = copy.seen - max(copy.submitted, self._edge)
            self._durations = [*self._durations[1 - _KEPT :], taken]

    def _copy(self, copy: CopyTimes, left: int) -> Span:
        """`left`: copies, this one included, that ended between the same two looks."""
        begun = max(copy.submitted, self._edge)
        surely = max(begun, copy.unseen)
        ended = surely + (copy.seen - surely) // left
        if self._durations:
            ended = min(max(begun + round(median(self._durations)), surely), ended)
        self._edge = max(self._edge, ended)
        layer, expert = divmod(copy.which, self._experts)
        kind = "prefetch" if copy.background else "transfer"
        return Span(PCIE, kind, begun, ended, layer, expert, 0)


def _reads(
    step: CapturedStep, stamps: Sequence[LayerStamps], taken: Sequence[Interval]
) -> Iterator[Span]:
    for layer, (at, work) in enumerate(zip(stamps, step.work, strict=True)):
        experts = tuple(work.in_place)
        if not experts:
            continue
        only = experts[0] if len(experts) == 1 else -1
        for start, end in _without((at.planned, at.computed), taken):
            yield Span(PCIE, "transfer", start, end, layer, only, 0, experts)


def _without(whole: Interval, taken: Sequence[Interval]) -> Iterator[Interval]:
    """What is left of an interval; `taken` are in order."""
    start, end = whole
    for begun, ended in taken:
        if ended <= start or begun >= end:
            continue
        if begun > start:
            yield start, begun
        start = ended
    if start < end:
        yield start, end
