"""Does `moesaic reproduce mobile` print the rows it promises, and do its commands repeat them?"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from command import refused, run, run_json

from moesaic.lab.gating.rules import Rule
from moesaic.lab.gating.tally import Outcome, tallies
from moesaic.reproductions.mobile import (
    Reproduction,
    quality_rows,
    speed_rows,
    table,
    together,
)
from moesaic.reproductions.mobile.speed_rows import MACHINES, Speed

KEYS = {"id", "claim", "paper", "ours", "unit", "ratio", "conditions", "command"}


def rows_of(*words: object) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = run_json("reproduce", "mobile", "--jobs", 1, *words)
    return rows


def test_a_simulated_row_is_repeated_by_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "TOKENS", 24)
    (row,) = rows_of("--only", "table3/gamma=0.7/accuracy=0.8")
    assert set(row) == KEYS
    assert row["paper"] == 1.57
    assert row["ratio"] == row["ours"] / 1.57
    gated = json.loads(run(*shlex.split(row["command"])[1:]).out)
    assert gated["gate"]["fallback_ratio"] == pytest.approx(0.21, abs=0.05)
    assert gated["gate"]["measured_speedup"] == pytest.approx(row["ours"])


def test_a_big_pass_that_reuses_takes_as_long_as_one_whose_wants_are_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "TOKENS", 24)
    rows = {row["id"]: row for row in rows_of("--only", "table2/olmoe/gsm8k")}
    bound = rows["table2/olmoe/gsm8k/reuse=experts"]
    assert bound["ours"] == rows["table2/olmoe/gsm8k/accuracy=1"]["ours"]
    assert "--prefetch-accuracy" not in bound["command"]
    assert "big-little:k=4,reuse=experts" in bound["command"]


def made_up() -> list[Outcome]:
    """Ten questions; a rule answers more of them right the higher its threshold is."""
    found = []
    for rule in quality_rows.rules():
        right = 10 if rule.full else int(10 * rule.gamma * rule.k / 4)
        again = 100 if rule.full else int(50 * rule.gamma)
        found += [Outcome(str(n), "", rule, n < right, "", (), 100, again, 0.0) for n in range(10)]
    return found


def test_rows_of_accuracy_are_ours_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "answered", lambda *given: iter(made_up()))
    rows = {row["id"]: row for row in rows_of("--only", "accuracy")}
    assert set(rows) == set(quality_rows.ids())
    accuracy = rows["accuracy/table3/gamma=0.8/accuracy"]
    assert accuracy["ours"] == 0.4
    assert accuracy["paper"] is None
    assert "not of the paper's" in accuracy["conditions"]
    assert "OLMoE on GSM8K: 0.473" in accuracy["claim"]
    kept = rows["accuracy/table3/gamma=0.8/kept"]
    assert (kept["ours"], kept["paper"]) == (0.4, 0.473 / 0.515)
    fallback = rows["accuracy/table3/gamma=0.8/fallback"]
    assert (fallback["ours"], fallback["paper"]) == (0.4, 0.27)
    assert rows["accuracy/table3/gamma=0/fallback"]["ratio"] is None
    assert rows["accuracy/table4/k=1/accuracy"]["ours"] == 0.1
    assert shlex.split(accuracy["command"])[-1] == "big-little:gamma=0.8,k=2"


def test_measures_are_compared_at_equal_ratios() -> None:
    line = [(0.0, 0.2), (0.1, 0.4), (0.1, 0.5), (0.3, 0.9)]
    assert quality_rows.at_ratio(line, 0.05) == pytest.approx(0.3)
    assert quality_rows.at_ratio(line, 0.2) == pytest.approx(0.7)
    assert quality_rows.at_ratio(line, 0.5) == 0.9
    found = tallies(made_up())
    curve = quality_rows.curve(found, "margin")
    assert curve[0] == (0.0, 0.0)
    assert len(curve) == 1 + len(quality_rows.OTHERS)


def test_the_bundled_models_rules_cover_the_tables() -> None:
    rules = quality_rows.rules()
    assert len(rules) == len(set(rules))
    for k in (1, 2, 3):
        assert {rule.gamma for rule in rules if rule.k == k} >= {0.0, 0.5, 0.6, 0.7, 0.8, 0.9}
    measures = {rule.confidence for rule in rules}
    assert measures == {"top-probability", "margin", "entropy"}


def test_a_small_part_of_the_accuracy_is_really_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [quality_rows.rules()[0], Rule(2, 0.0), Rule(2, 0.9)]
    monkeypatch.setattr(quality_rows, "rules", lambda: few)
    found = tallies(quality_rows.answered(1, 1, lambda done: None))
    assert set(found) == set(few)
    assert all(tally.asked == 2 for tally in found.values())
    assert found[few[0]].decoded > 0


def speeds(seconds: dict[str, float]) -> dict[str, dict[str, Speed]]:
    return {
        machine: {gate: Speed(100, seconds[name], [100 / seconds[name]])
                  for name, gate in speed_rows.GATES.items()}
        for machine in MACHINES
    }  # fmt: skip


def test_measured_rows_are_over_the_full_model(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {"full": 4.0, "gamma=0": 2.0, "gamma=0.7": 2.5, "gamma=0.99": 3.2}
    monkeypatch.setattr(speed_rows, "measure_all", lambda *given: speeds(taken))
    rows = {row["id"]: row for row in rows_of("--only", "measured")}
    assert set(rows) == set(speed_rows.ids())
    row = rows["measured/slow-link/gamma=0.7"]
    assert (row["ours"], row["paper"]) == (1.6, 1.57)
    assert "0.05 GB/s" in row["conditions"]


def test_pictures_are_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from moesaic.cli.study.mobile_pictures import draw_all

    taken = {"full": 4.0, "gamma=0": 2.0, "gamma=0.7": 2.5, "gamma=0.99": 3.2}
    found = table.Found(tallies(made_up()), speeds(taken))
    names = draw_all(str(tmp_path), found)
    assert [Path(name).name for name in names] == [
        "mobile-accuracy-speed.svg", "mobile-confidence.svg"
    ]  # fmt: skip
    assert all("<svg" in Path(name).read_text()[:1000] for name in names)


def test_together_compares_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "BATCHES", {1: 8, 8: 4})
    monkeypatch.setattr(together, "SETS", (("hybrid", "mrs", "impact"),))
    machine = "rtx4080-i5-12400"
    words = ("--together", "--machines", machine, "--batches", "1")
    (row,) = rows_of(*words)
    assert row["id"] == f"together/{machine}/batch=1/hybrid+mrs+impact"
    both = json.loads(run(*shlex.split(row["command"])[1:]).out)["latency_s"]["mean"]
    taken = {run_: together.execute(run_) for run_ in together.grid([machine], [1])}
    (gains,) = together.gains(taken)
    base = taken[together.Together(machine, 1, together.BASE, False)]
    assert gains.both == pytest.approx(base / both)
    assert row["ours"] == pytest.approx(gains.both / (gains.gate * gains.policies))
    assert f"both {gains.both:.2f} x" in row["conditions"]
    assert f"{gains.both:.2f}" in run("reproduce", "mobile", "--jobs", 1, *words).out


def test_mistakes_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, expected in (
        (("--only", "fig6"), "accuracy or measured"),
        (("--machines", "rtx4080-i5-12400"), "--machines is of --together"),
        (("--together", "--batches", "3"), "batch 3 is not simulated: choose among 1, 8, 64"),
        (("--together", "--quick"), "--quick has no meaning with --together"),
        (("--together", "--only", "fig5"), "--only has no meaning with --together"),
        (("--only", "fig5", "--plots", "."), "--only fig5 measures none"),
        (("--together", "--batches", "many"), "whole numbers"),
        (("--only", "fig5", "--plots", "nowhere"), "no directory"),
    ):
        assert expected in refused(monkeypatch, capsys, "reproduce", "mobile", *words)


def test_quick_asks_less() -> None:
    few, many = Reproduction(quick=True), Reproduction()
    assert few._problems < many._problems
    assert few.total(2) < many.total(2)
