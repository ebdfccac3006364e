"""Does `moesaic reproduce hybrimoe` print the rows it promises, and do its commands repeat them?"""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from command import refused, run, run_json

from moesaic.reproductions.hybrimoe import Reproduction
from moesaic.reproductions.hybrimoe.paper import CACHE_RATIOS, LENGTHS, MODELS, SYSTEMS

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


def test_an_unknown_row_says_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "fig7" in refused(monkeypatch, capsys, "reproduce", "hybrimoe", "--only", "fig6")
