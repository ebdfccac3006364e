"""How a call that computes several experts is named in pictures and Chrome traces."""

from __future__ import annotations

from moesaic.cli.shared.perfetto import _event
from moesaic.cli.shared.timeline_picture import _names
from moesaic.core.report import Span, experts_span

TOGETHER = experts_span("cpu", 1000, 3000, 2, (4, 17, 5), 6)
ALONE = experts_span("cpu", 1000, 3000, 2, (4,), 6)


def test_several_experts_are_counted_and_listed() -> None:
    event = _event(TOGETHER, None, ["step", "cpu"], 0)
    assert event["name"] == "3 experts, layer 2"
    assert event["args"] == {"layer": 2, "tokens": 6, "experts": [4, 17, 5]}
    assert _names(TOGETHER) == ("4 17 5", "3 experts")


def test_one_expert_has_its_number() -> None:
    event = _event(ALONE, None, ["step", "cpu"], 0)
    assert event["name"] == "expert 4, layer 2"
    assert event["args"] == {"layer": 2, "expert": 4, "tokens": 6}
    assert _names(ALONE) == ("4",)


def test_who_was_computed_in_a_span() -> None:
    assert TOGETHER.computed == (4, 17, 5)
    assert ALONE.computed == (4,)
    assert Span("gpu", "expert", 0, 1, 0, 9, 1).computed == (9,)
    assert Span("gpu", "dense", 0, 1, 0, -1, 1).computed == ()
