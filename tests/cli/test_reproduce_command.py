"""Does `moesaic reproduce hybrimoe` print the rows it promises, and do its commands repeat them?"""

from __future__ import annotations

import json
import shlex
from itertools import product
from statistics import fmean
from typing import Any

import pytest
from command import refused, run, run_json

from moesaic.reproductions.hybrimoe import Reproduction, beliefs, table
from moesaic.reproductions.hybrimoe.paper import CACHE_RATIOS, LENGTHS, MODELS, SYSTEMS
from moesaic.reproductions.hybrimoe.runs import WINDOW, execute

KEYS = {"id", "claim", "paper", "ours", "unit", "ratio", "conditions", "command"}


def rows_of(only: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = run_json("reproduce", "hybrimoe", "--only", only, "--jobs", 1)
    return rows


def test_a_row_has_the_papers_value_ours_and_a_command_that_gives_ours_again() -> None:
    (row,) = rows_of("table3/decode/baseline@a6000-xeon5220r-implied")
    assert set(row) == KEYS
    assert row["paper"] == 0.21
    assert row["ratio"] == pytest.approx(row["ours"] / 0.21)
    again = json.loads(run(*shlex.split(row["command"])[1:]).out)
    assert again["latency_s"]["mean"] == row["ours"]


def test_a_bar_without_a_number_leaves_the_papers_value_empty() -> None:
    (row,) = rows_of("fig7/deepseek-v2-lite/32/25%/llama.cpp")
    assert row["paper"] is None
    assert row["ratio"] is None
    again = json.loads(run(*shlex.split(row["command"])[1:]).out)
    assert again["latency_s"]["mean"] == row["ours"]


def test_hit_rates_have_the_stated_values_and_belady_is_the_most() -> None:
    rows = {row["id"].rsplit("/", 1)[1]: row for row in rows_of("fig9/mixtral-8x7b/25%")}
    assert (rows["lru"]["paper"], rows["mrs"]["paper"], rows["belady"]["paper"]) == (
        0.302,
        0.362,
        None,
    )
    assert rows["belady"]["ours"] > max(rows["lru"]["ours"], rows["mrs"]["ours"])


def test_the_whole_grid_is_there() -> None:
    names = [wanted.id for wanted in Reproduction()._wanted]
    grid = len(MODELS) * len(CACHE_RATIOS) * len(LENGTHS) * len(SYSTEMS)
    for figure in ("fig7/", "fig8/"):
        assert sum(name.startswith(figure) for name in names) == grid
    assert len(names) == len(set(names))
    assert {"average-prefill@a6000-xeon5220r", "average-decode@a6000-xeon5220r"} <= set(names)
    assert sum(name.startswith("table3/") for name in names) == 2 * (4 + 3 + 5 + 4)


def test_beliefs_are_wrong_about_each_device_in_both_directions() -> None:
    names = {wanted.id for wanted in Reproduction("belief")._wanted}
    expected = product(
        ("cpu", "gpu", "pcie"), ("0.5", "0.8", "1.2", "2"), ("hybrimoe", "moesaic"),
        ("a6000-xeon5220r", "a6000-xeon5220r-implied"),
    )  # fmt: skip
    assert names == {f"belief/{lane}={by}/{system}@{where}" for lane, by, system, where in expected}


def test_profiles_of_both_lengths_come_before_the_same_tokens() -> None:
    wanted = Reproduction("profile=")._wanted
    assert {each.id.split("/")[0] for each in wanted} == {"profile=256", "profile=8192"}
    for each in wanted:
        for run_of in each.runs:
            assert run_of.settings().skipped_tokens == 8192
            assert f"--profile-tokens {run_of.profile} --first-token 8192" in run_of.command()
            assert f"profile={run_of.profile}/" in each.id


def test_a_row_of_a_wrong_belief_compares_with_the_exact_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beliefs, "TOKENS", 8)
    monkeypatch.setattr(beliefs, "ABLATION_MODEL", "deepseek-v2-lite")
    name = "belief/cpu=2/hybrimoe@a6000-xeon5220r-implied"
    (row,) = rows_of(name)
    (wanted,) = Reproduction(name)._wanted
    wrong, exact = (run_json(*shlex.split(run.command())[1:-1]) for run in wanted.runs[:2])
    assert (wrong["belief_error"], exact["belief_error"]) == ({"cpu": 2.0}, {})
    assert wrong["latency_s"] != exact["latency_s"]
    assert row["ours"] == exact["latency_s"]["mean"] / wrong["latency_s"]["mean"]


def test_decode_claims_are_measured_in_many_windows_and_say_how_far_these_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decode = [w for w in Reproduction()._wanted if w.id.startswith(("average-d", "table3/decode"))]
    assert {run.tokens for wanted in decode for run in wanted.runs} == {12 * WINDOW}
    monkeypatch.setattr(table, "SETTLED_STEPS", 2 * WINDOW)
    (row,) = rows_of("average-decode/deepseek-v2-lite@a6000-xeon5220r")
    (wanted,) = Reproduction("average-decode/deepseek-v2-lite@a6000-xeon5220r")._wanted
    assert len(wanted.runs) == 2 * len(CACHE_RATIOS)
    outcomes = {run: execute(run) for run in wanted.runs}
    pairs = list(zip(wanted.runs[::2], wanted.runs[1::2], strict=True))
    windows = [
        fmean(outcomes[b].windows_s[at] / outcomes[a].windows_s[at] for a, b in pairs)
        for at in range(2)
    ]
    found = f"by window of 64 tokens {min(windows):.3g} to {max(windows):.3g} x, standard deviation"
    assert found in row["conditions"]
    assert min(windows) < row["ours"] < max(windows)
    assert (
        "72 GB/s, a datasheet number times an efficiency measured on another" in row["conditions"]
    )


def test_an_unknown_row_says_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "fig7" in refused(monkeypatch, capsys, "reproduce", "hybrimoe", "--only", "fig6")
