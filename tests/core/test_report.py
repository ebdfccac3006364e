"""How much time spans cover, and how much of it is work."""

from __future__ import annotations

from moesaic.core.report import AWAIT_SUM, Span, busy_ns, covered_ns


def span(lane: str, kind: str, start: int, end: int) -> Span:
    return Span(lane, kind, start, end, 0, -1, 1)


SPANS = [
    span("gpu", "expert", 20, 40),
    span("gpu", "dense", 0, 10),
    span("engine", "plan", 5, 12),
    span("gpu", AWAIT_SUM, 40, 50),
    span("engine", "look-ahead", 21, 30),
]


def test_time_in_several_spans_counts_once() -> None:
    assert covered_ns(SPANS, 0, 60) == 12 + 30
    assert covered_ns(SPANS, 8, 25) == 4 + 5
    assert covered_ns([], 0, 60) == 0


def test_waiting_is_not_work() -> None:
    assert busy_ns(SPANS, "gpu") == 30
