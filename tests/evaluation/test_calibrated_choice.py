"""Which threshold `calibrate` takes of those measured, and what it refuses; nothing is run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from moesaic.core.errors import ImpossibleSetting
from moesaic.lab.gating import calibrate as calibrating
from moesaic.lab.gating.bound import Bound
from moesaic.lab.gating.calibrate import Calibration, calibrate
from moesaic.lab.gating.rules import Rule, full_rule
from moesaic.lab.gating.tally import Outcome, Tally

TOP_K, ASKED, TOKENS = 8, 20, 10


def tally(right: int, fallback_ratio: float) -> Tally:
    made = Tally()
    for number in range(ASKED):
        again = round(fallback_ratio * TOKENS)
        made.add(Outcome(str(number), "", Rule(2, 0.5), number < right, "", (), TOKENS, again, 0.0))
    return made


def chosen(
    monkeypatch: pytest.MonkeyPatch, measured: dict[Rule, Tally], points: float, full: int = ASKED
) -> Calibration:
    """`full`: how many the full model has right."""
    found = {full_rule(TOP_K): tally(full, 0.0), **measured}
    study: Any = SimpleNamespace(run=lambda questions, advance: ())
    monkeypatch.setattr(calibrating, "ForkedDecoding", lambda *a, **b: study)
    monkeypatch.setattr(calibrating, "tallies", lambda outcomes: dict(found))
    model: Any = SimpleNamespace(spec=SimpleNamespace(name="m", top_k=TOP_K))
    return calibrate(model, [], Bound(points=points), ["margin"])


def test_the_cheapest_that_keeps_the_bound_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads are k / K and the fallback ratio: 2/8 + 0.7 is more than 6/8 + 0.1."""
    small, half, large = Rule(2, 0.9), Rule(4, 0.9), Rule(6, 0.9)
    measured = {small: tally(19, 0.7), large: tally(20, 0.1), half: tally(19, 0.2)}
    found = chosen(monkeypatch, measured, 5.0)
    assert [each.rule for each in found.candidates] == [half, large, small]
    assert [each.reads for each in found.candidates] == pytest.approx([0.7, 0.85, 0.95])
    assert found.chosen.rule == half
    assert chosen(monkeypatch, measured, 1.0).chosen.rule == large


def test_of_equally_cheap_ones_the_better_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    worse, better = Rule(4, 0.9), Rule(4, 0.5)
    found = chosen(monkeypatch, {worse: tally(18, 0.2), better: tally(19, 0.2)}, 10.0)
    assert found.chosen.rule == better


def test_what_reads_as_much_as_the_full_model_is_never_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ImpossibleSetting, match="no threshold that reads fewer experts"):
        chosen(monkeypatch, {Rule(4, 0.9): tally(20, 0.5)}, 5.0)


def test_the_cost_says_of_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, {Rule(4, 0.9): tally(15, 0.2)}, 5.0, full=16)
    assert found.cost().startswith("5.0 of 80.0 points of exact match lost (95 % interval ")


def test_prompts_that_show_no_loss_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the full model has nothing right, every gate would keep every bound."""
    with pytest.raises(ImpossibleSetting, match="none of these 20 prompts right"):
        chosen(monkeypatch, {Rule(4, 0.9): tally(0, 0.2)}, 5.0, full=0)
