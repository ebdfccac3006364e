"""What the main thread does between the network and the experts, as spans of a timeline: without
them a measured timeline has gaps on every lane that nothing explains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns

from moesaic.core.body import Decider
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.report import ENGINE, LayerReport, Span, Timeline
from moesaic.core.routing import Forecast, LayerRouting
from moesaic.core.view import View


class EngineSpans:
    """A brain that forwards every call and adds to `timeline`, layer by layer: `hand-over` from the
    router to the planner, `plan`, `start` until an expert runs, `look-ahead`, and `sum` from the
    last expert on. `network_end` says when the network arrived at this layer's router."""

    def __init__(self, brain: Decider, timeline: Timeline, network_end: Callable[[], int]) -> None:
        self._brain, self._timeline, self._network_end = brain, timeline, network_end
        self.wants_forecasts = brain.wants_forecasts
        self._first = len(timeline.spans)  # of this layer
        self._decided = 0

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan:
        self._first = len(self._timeline.spans)
        called = perf_counter_ns()
        plan = self._brain.decide(routing, view)
        self._decided = perf_counter_ns()
        self._add("hand-over", self._network_end(), called, routing.layer)
        self._add("plan", called, self._decided, routing.layer)
        return plan

    def look_ahead(self, forecasts: Sequence[Forecast] = ()) -> tuple[Move, ...]:
        called = perf_counter_ns()
        moves = self._brain.look_ahead(forecasts)
        self._add("look-ahead", called, perf_counter_ns(), -1)
        return moves

    def learn(self, routing: LayerRouting, report: LayerReport) -> None:
        self._brain.learn(routing, report)
        layer = routing.layer
        ran = [s for s in self._timeline.spans[self._first :] if s.layer == layer and s.computed]
        ahead = [s.start_ns for s in self._timeline.spans[self._first :] if s.kind == "look-ahead"]
        begun = min((s.start_ns for s in ran), default=report.start_ns)
        ended = max((s.end_ns for s in ran), default=report.end_ns)
        self._add("start", self._decided, min([begun, *ahead]), layer)
        self._add("sum", ended, perf_counter_ns(), layer)

    def _add(self, kind: str, start_ns: int, end_ns: int, layer: int) -> None:
        if end_ns > start_ns:
            self._timeline.add(Span(ENGINE, kind, start_ns, end_ns, layer, -1, 0))
