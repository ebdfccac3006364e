"""Bounds, quality levels and the files that `moesaic calibrate` writes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moesaic.core.errors import BadFile, ImpossibleSetting, UnknownName
from moesaic.lab.gating import calibrate as calibrating
from moesaic.lab.gating import calibrate as calibration
from moesaic.lab.gating.bound import Bound, read_bound
from moesaic.lab.gating.calibrate import GAMMAS, Calibration, calibrate, candidates
from moesaic.lab.gating.prompt_file import PromptLine, read_prompts
from moesaic.lab.gating.rules import Rule, full_rule
from moesaic.lab.gating.tally import Outcome, Tally
from moesaic.policies.gate import gates
from moesaic.policies.policy_choice import PolicyChoice
from moesaic.policies.quality_levels import COMMAND, FORMAT, LEVELS, quality_level
from moesaic.reproductions.mobile.quality_rows import PREFIX, ids

FILE = {"format": FORMAT, "gate": "big-little:gamma=0.9,k=2", "model": "m", "cost": "2 points",
        "measured_on": "9 prompts"}  # fmt: skip


@pytest.mark.parametrize("text", ["1 point exact match", "1 point", "1", "at most 1 % exact-match"])
def test_bounds_in_points(text: str) -> None:
    assert read_bound(text, None, False) == Bound(points=1.0)


@pytest.mark.parametrize("text", ["a bit", "-1 point", "1 nat", ""])
def test_bounds_that_say_nothing_are_refused(text: str) -> None:
    with pytest.raises(ImpossibleSetting, match="1 point exact match"):
        read_bound(text, None, False)


def test_one_bound_must_be_given() -> None:
    for points, kl in ((None, None), ("1", 0.1)):
        with pytest.raises(ImpossibleSetting, match="give one bound"):
            read_bound(points, kl, False)
    with pytest.raises(ImpossibleSetting, match="above 0"):
        read_bound(None, 0.0, False)


def tally(right: int, of: int) -> Tally:
    made = Tally()
    for number in range(of):
        made.add(Outcome(str(number), "", Rule(2, 0.5), number < right, "", (), 4, 1, 0.4))
    return made


def test_a_bound_is_of_the_measured_loss_or_of_its_interval() -> None:
    full, ours = tally(100, 100), tally(99, 100)
    assert Bound(points=1.0).kept(ours, full)
    assert not Bound(points=0.9).kept(ours, full)
    assert not Bound(points=1.0, sure=True).kept(ours, full)
    assert Bound(points=6.0, sure=True).kept(ours, full)
    assert Bound(kl=0.1).kept(ours, full)
    assert not Bound(kl=0.09).kept(ours, full)
    ours.divergences = [0.0, 0.2]  # mean 0.1, standard error 0.1
    assert Bound(kl=0.1).kept(ours, full)
    assert not Bound(kl=0.29, sure=True).kept(ours, full)
    assert Bound(kl=0.30, sure=True).kept(ours, full)


def test_tokens_that_run_again_count_as_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model that nearly always falls back reads more than a larger one, and one that reads
    more than the full model is never chosen."""
    again = {Rule(2, 0.9): 60, Rule(3, 0.9): 10, Rule(3, 0.99): 30}  # of 100 tokens

    class Study:
        def __init__(self, *given: object, **options: object) -> None: ...

        def run(self, *given: object) -> list[Outcome]:
            found = [Outcome("1", "", full_rule(4), True, "", (), 100, 0, 0.0)]
            kl = {Rule(3, 0.99): 0.1}
            return found + [Outcome("1", "", rule, True, "", (), 100, n, kl.get(rule, 1.0))
                            for rule, n in again.items()]  # fmt: skip

    monkeypatch.setattr(calibration, "ForkedDecoding", Study)
    spec = SimpleNamespace(top_k=4, name="m")
    model: Any = SimpleNamespace(spec=spec)
    chosen = calibration.calibrate(model, [], Bound(kl=0.01), ("top-probability",)).chosen
    assert chosen.rule == Rule(3, 0.9)
    assert chosen.reads == pytest.approx(0.85)
    with pytest.raises(ImpossibleSetting, match="reads fewer experts than the full model"):
        calibration.calibrate(model, [], Bound(kl=0.005), ("top-probability",))


def test_candidates_are_quarters_of_top_k() -> None:
    found = candidates(8, ["margin"])
    assert {rule.k for rule in found} == {2, 4, 6}
    assert len(found) == 3 * (1 + len(GAMMAS))
    assert {rule.k for rule in candidates(2, ["margin"])} == {1}
    assert candidates(1, ["margin"]) == []


def test_rules_are_gates_as_options() -> None:
    for rule in (full_rule(4), Rule(2, 0.0), Rule(2, 0.9), Rule(1, 0.5, "entropy")):
        gate = PolicyChoice.parse(gates, rule.gate).create(gates, 4)
        assert getattr(gate, "k", 4) == rule.k
        assert getattr(gate, "gamma", rule.gamma) == rule.gamma
        assert getattr(gate, "confidence", rule.confidence) == rule.confidence


def test_levels_by_name_are_gates() -> None:
    assert quality_level("strict").gate == "full"
    for level in LEVELS.values():
        PolicyChoice.parse(gates, level.gate)
    with pytest.raises(UnknownName, match="balanced"):
        quality_level("balancd")


@pytest.mark.parametrize("name", [name for name in LEVELS if name != "strict"])
def test_levels_cost_what_their_command_has_measured(name: str) -> None:
    """The table of docs/mobile-results.md is that of the command."""
    level, page = LEVELS[name], Path(__file__).parents[2] / "docs" / "mobile-results.md"
    gamma = level.gate.rpartition("gamma=")[2]
    table = {
        cells[1]: cells
        for line in page.read_text().splitlines()
        if len(cells := [cell.strip() for cell in line.split("|")]) == 8
    }
    (right, again), full = (table[gamma][at] for at in (2, 5)), table["1 (full)"][2]
    reruns = f"{float(again):.1%}".replace("%", " %")
    assert level.cost == f"{right} instead of {full} right, {reruns} of tokens run again"
    assert f"({COMMAND})" in level.measured_on
    assert f"{PREFIX}/table3/gamma={gamma}/accuracy" in ids()


def test_a_level_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    path.write_text(json.dumps(FILE))
    level = quality_level(str(path))
    assert (level.gate, level.model, level.cost) == (FILE["gate"], "m", "2 points")


@pytest.mark.parametrize(
    "content", ["", "[1]", json.dumps(FILE | {"format": "x"}), json.dumps(FILE | {"gate": 3})]
)
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "q.json"
    path.write_text(content)
    with pytest.raises(BadFile, match="no file of `moesaic calibrate`"):
        quality_level(str(path))
    with pytest.raises(ImpossibleSetting, match="no such file"):
        quality_level(str(tmp_path / "other.json"))


def test_prompts_are_lines_or_json(tmp_path: Path) -> None:
    text, lines = tmp_path / "a.txt", tmp_path / "a.jsonl"
    text.write_text("one\n\n two \n")
    assert read_prompts(text, None) == [PromptLine("one"), PromptLine("two")]
    lines.write_text('{"prompt": "p", "answer": "3"}\n{"question": "q"}\n')
    assert read_prompts(lines, None) == [PromptLine("p", "3"), PromptLine("q")]
    assert read_prompts(lines, 1) == [PromptLine("p", "3")]
    lines.write_text('{"prompt": "p", "answer": 3}\n')
    with pytest.raises(BadFile, match="line 1"):
        read_prompts(lines, None)
    text.write_text("\n")
    with pytest.raises(BadFile, match="no prompts"):
        read_prompts(text, None)


def test_a_file_is_for_its_model(tmp_path: Path) -> None:
    from moesaic import LLM

    path = tmp_path / "q.json"
    path.write_text(json.dumps(FILE))
    options: dict[str, Any] = {"quality": str(path)}
    with pytest.raises(ImpossibleSetting, match="measured with m, and this is moesaic-20m"):
        LLM(**options)
    with pytest.raises(ImpossibleSetting, match="both a gate and a quality"):
        LLM(gate="full", **options)


# Which threshold `calibrate` takes of those measured, and what it refuses; nothing is run.

TOP_K, ASKED, TOKENS = 8, 20, 10


def tally_of(right: int, fallback_ratio: float) -> Tally:
    made = Tally()
    for number in range(ASKED):
        again = round(fallback_ratio * TOKENS)
        made.add(Outcome(str(number), "", Rule(2, 0.5), number < right, "", (), TOKENS, again, 0.0))
    return made


def chosen(
    monkeypatch: pytest.MonkeyPatch, measured: dict[Rule, Tally], points: float, full: int = ASKED
) -> Calibration:
    """`full`: how many the full model has right."""
    found = {full_rule(TOP_K): tally_of(full, 0.0), **measured}
    study: Any = SimpleNamespace(run=lambda questions, advance: ())
    monkeypatch.setattr(calibrating, "ForkedDecoding", lambda *a, **b: study)
    monkeypatch.setattr(calibrating, "tallies", lambda outcomes: dict(found))
    model: Any = SimpleNamespace(spec=SimpleNamespace(name="m", top_k=TOP_K))
    return calibrate(model, [], Bound(points=points), ["margin"])


def test_the_cheapest_that_keeps_the_bound_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads are k / K and the fallback ratio: 2/8 + 0.7 is more than 6/8 + 0.1."""
    small, half, large = Rule(2, 0.9), Rule(4, 0.9), Rule(6, 0.9)
    measured = {small: tally_of(19, 0.7), large: tally_of(20, 0.1), half: tally_of(19, 0.2)}
    found = chosen(monkeypatch, measured, 5.0)
    assert [each.rule for each in found.candidates] == [half, large, small]
    assert [each.reads for each in found.candidates] == pytest.approx([0.7, 0.85, 0.95])
    assert found.chosen.rule == half
    assert chosen(monkeypatch, measured, 1.0).chosen.rule == large


def test_of_equally_cheap_ones_the_better_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    worse, better = Rule(4, 0.9), Rule(4, 0.5)
    found = chosen(monkeypatch, {worse: tally_of(18, 0.2), better: tally_of(19, 0.2)}, 10.0)
    assert found.chosen.rule == better


def test_what_reads_as_much_as_the_full_model_is_never_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ImpossibleSetting, match="no threshold that reads fewer experts"):
        chosen(monkeypatch, {Rule(4, 0.9): tally_of(20, 0.5)}, 5.0)


def test_the_cost_says_of_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, {Rule(4, 0.9): tally_of(15, 0.2)}, 5.0, full=16)
    assert found.cost().startswith("5.0 of 80.0 points of exact match lost (95 % interval ")


def test_prompts_that_show_no_loss_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the full model has nothing right, every gate would keep every bound."""
    with pytest.raises(ImpossibleSetting, match="none of these 20 prompts right"):
        chosen(monkeypatch, {Rule(4, 0.9): tally_of(0, 0.2)}, 5.0, full=0)
