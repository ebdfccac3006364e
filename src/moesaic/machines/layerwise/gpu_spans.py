"""When the GPU computed what: noted as marks while a step runs, as times when it has ended."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.core.offloading import GPU
from moesaic.core.report import Span, Timeline, experts_span
from moesaic.machines.real.streams import Mark, Streams


@dataclass(frozen=True, slots=True)
class _Interval:
    begun: Mark
    ended: Mark
    layer: int
    tokens: int
    experts: tuple[int, ...] = ()  # none: the network


class GpuSpans:
    """`network_ns` and `experts_ns[layer]` are of the last step that has ended."""

    def __init__(self, streams: Streams, timeline: Timeline) -> None:
        self._streams, self._timeline = streams, timeline
        self._noted: list[_Interval] = []
        self.network_ns, self.experts_ns = 0, dict[int, int]()

    def begin(self) -> None:
        """Begin a step; nothing may be running."""
        self._noted = []
        self._streams.rebase()
        self._since = self._streams.mark()

    def network_from_here(self) -> None:
        self._since = self._streams.mark()

    def network(self, layer: int, tokens: int) -> None:
        """Record that the network was computed up to here."""
        self._noted.append(_Interval(self._since, self._streams.mark(), layer, tokens))

    def experts(
        self, begun: Mark, ended: Mark, layer: int, experts: tuple[int, ...], load: int
    ) -> None:
        self._noted.append(_Interval(begun, ended, layer, load, experts))

    def resolve(self) -> None:
        """Everything has ended."""
        self.network_ns, self.experts_ns = 0, {}
        for interval in self._noted:
            begin, end = (self._streams.time_ns(m) for m in (interval.begun, interval.ended))
            if interval.experts:
                taken = self.experts_ns.get(interval.layer, 0)
                self.experts_ns[interval.layer] = taken + end - begin
            else:
                self.network_ns += end - begin
            if self._timeline.enabled:
                self._timeline.add(_span(interval, begin, end))
        self._noted = []


def _span(interval: _Interval, begin: int, end: int) -> Span:
    layer, tokens = interval.layer, interval.tokens
    if interval.experts:
        return experts_span(GPU, begin, end, layer, interval.experts, tokens)
    return Span(GPU, "dense", begin, end, layer, -1, tokens)
