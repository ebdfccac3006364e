"""Does `moesaic compare` put every combination in its place, and say why one is missing?"""

from __future__ import annotations

import csv
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import SMALL, refused, run, run_json

from moesaic.cli.study import compare_picture
from moesaic.cli.study.comparison import ComparisonCell
from moesaic.policies.systems import SYSTEMS

ALONE = ("--jobs", 1)


def test_rows_are_systems_in_order_with_speedups_over_ktransformers() -> None:
    rows = run_json("compare", *SMALL, *ALONE)
    assert [row["system"] for row in rows] == list(SYSTEMS)
    base = next(row for row in rows if row["system"] == "ktransformers")
    for row in rows:
        ratio = base["latency_s"]["mean"] / row["latency_s"]["mean"]
        assert row["speedup"] == pytest.approx(ratio)
        assert row["baseline"] == "ktransformers"
        assert row["command"].startswith("moesaic compare --tokens 8")


def test_a_row_is_what_simulate_says() -> None:
    row = run_json("compare", *SMALL, *ALONE, "--systems", "hybrimoe")[0]
    alone = run_json("simulate", *SMALL, "--policies", "hybrimoe")
    assert all(row[key] == alone[key] for key in alone if key not in ("wall_s", "command"))


def test_processes_change_nothing() -> None:
    words = ("compare", *SMALL, "--systems", "ktransformers,hybrimoe")
    apart, together = (run_json(*words, "--jobs", jobs) for jobs in (2, 1))
    keys = ("system", "latency_s", "hit_rate", "bytes_moved", "speedup")
    assert [[row[k] for k in keys] for row in apart] == [[row[k] for k in keys] for row in together]


def test_grid_of_policies_ratios_and_machines() -> None:
    rows = run_json(
        "compare", *SMALL, *ALONE, "--schedules", "hybrid,static-experts", "--caches", "lru",
        "--prefetches", "none", "--cache-ratios", "0.25,0.5", "--machines",
        "a6000-xeon5220r,h200-emr16",
    )  # fmt: skip
    places = [(row["machine"], row["cache_ratio"], row["system"]) for row in rows]
    assert places == [
        (machine, ratio, f"{schedule}+lru+none")
        for machine in ("a6000-xeon5220r", "h200-emr16")
        for ratio in (0.25, 0.5)
        for schedule in ("hybrid", "static-experts")
    ]
    assert {row["baseline"] for row in rows} == {"hybrid+lru+none"}


def test_machines_are_called_what_they_call_themselves(tmp_path: Path) -> None:
    mine, twin = tmp_path / "my.toml", tmp_path / "twin.toml"
    text = run("machines", "a6000-xeon5220r", "--toml").out
    mine.write_text(text.replace('"a6000-xeon5220r"', '"under-my-desk"', 1))
    twin.write_text(text)
    machines = f"{mine},a6000-xeon5220r,{twin}"
    words = ("compare", *SMALL, *ALONE, "--systems", "adapmoe,fiddler", "--machines", machines)
    rows = run_json(*words, "--cache-ratios", 0)
    expected = ["under-my-desk", "a6000-xeon5220r", f"a6000-xeon5220r ({twin})"]
    assert [row["machine"] for row in rows] == [name for name in expected for _ in range(2)]
    assert "on under-my-desk" in run(*words).out


def test_impossible_combinations_are_skipped_with_the_reason() -> None:
    words = ("compare", *SMALL, *ALONE, "--cache-ratios", "0", "--systems", "adapmoe,fiddler")
    skipped, done = run_json(*words)
    assert "leaves no GPU slot" in skipped["skipped"]
    assert "latency_s" not in skipped
    assert "latency_s" in done
    shown = run(*words).out
    assert "Skipped" in shown
    assert "adapmoe at 0%" in shown


def test_table_and_plot(tmp_path: Path) -> None:
    plot = tmp_path / "compare.png"
    shown = run("compare", *SMALL, *ALONE, "--cache-ratios", "0,0.25", "--plot", plot)
    assert all(name in shown.out for name in SYSTEMS)
    assert "1.00" in shown.out
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert plot.stat().st_size > 10_000


def test_names_of_combinations_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe has no width: the table is wider than 80 columns where names need that."""
    monkeypatch.delenv("COLUMNS", raising=False)
    words = ("--schedules", "hybrid,static-experts", "--caches", "lru,two-speed")
    lines = run("compare", *SMALL, *ALONE, *words, "--prefetches", "next-layer").out.splitlines()
    for name in ("hybrid+lru+next-layer", "static-experts+two-speed+next-layer"):
        (row,) = (line for line in lines if f" {name} " in line)
        assert row.count("│") == 9
        assert "…" not in row
    assert len({len(line) for line in lines if line.startswith("│")}) == 1


def outcome(label: str, ratio: float, mean_s: float | None) -> ComparisonCell:
    result = {
        "latency_s": {"mean": mean_s}, "floor_s": 1e-3, "steps": 1, "phase": "decode", "batch": 1,
        "model": "m", "expert_dtype": "bf16", "trace": {"synthetic": True, "origin": "synthetic"},
    }  # fmt: skip
    if mean_s is None:
        return ComparisonCell(label, "box", ratio, skipped="cannot be")
    return ComparisonCell(label, "box", ratio, result)


def test_every_combination_looks_different_and_stays_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = [f"schedule-{number}+cache+none" for number in range(24)]
    assert len({tuple(compare_picture.style(index).items()) for index in range(24)}) == 24
    cells = [outcome(label, 0.0, None) for label in labels]
    cells += [outcome(label, 0.25, 0.01) for label in labels]
    drawn: list[Any] = []
    monkeypatch.setattr(compare_picture, "save", lambda figure, path: drawn.append(figure))
    compare_picture.draw_comparison(str(tmp_path / "x.png"), cells)
    figure = drawn[0]
    figure.draw_without_rendering()
    (axes,) = figure.axes
    inside = axes.get_window_extent()
    assert inside.height > 0.25 * figure.bbox.height  # the legend leaves room
    skipped = [text.get_window_extent() for text in axes.texts if text.get_text() == "skipped"]
    assert len(skipped) == 24
    assert all(inside.x0 <= text.x0 and text.x1 <= inside.x1 for text in skipped)
    assert all(text.get_position()[0] >= axes.get_xlim()[0] for text in axes.get_xticklabels())


def test_values_above_bars_do_not_run_into_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = [outcome(name, ratio, 0.0883) for ratio in (0.25, 0.5, 0.75) for name in SYSTEMS]
    drawn: list[Any] = []
    monkeypatch.setattr(compare_picture, "save", lambda figure, path: drawn.append(figure))
    other = [replace(cell, machine="other") for cell in one]
    compare_picture.draw_comparison(str(tmp_path / "x.png"), [*one, *other])
    drawn[0].set_dpi(150)  # as it is saved: widths of letters are rounded
    drawn[0].draw_without_rendering()
    for axes in drawn[0].axes:
        places = sorted((text.get_window_extent() for text in axes.texts), key=lambda it: it.x0)
        assert len(places) == 18
        pairs = itertools.pairwise(places)
        assert all(right.x0 - left.x1 > 0.1 * left.width for left, right in pairs)


def test_one_bar_many_times_the_others_leaves_them_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(compare_picture, "save", lambda figure, path: drawn.append(figure))
    heights = {"a": 0.010, "b": 0.008, "c": 0.150, "d": 0.009}
    cells = [outcome(label, 0.25, mean) for label, mean in heights.items()]
    compare_picture.draw_comparison(str(tmp_path / "x.png"), cells)
    (axes,) = drawn[0].axes
    top = axes.get_ylim()[1]
    bars = [patch.get_height() for patch in axes.patches]
    assert bars[:2] == [10.0, 8.0]
    assert max(bars) < top < 20.0, "the others take more than half of the height"
    assert "150" in [text.get_text() for text in axes.texts]
    assert len(axes.lines) == 1, "the gap of the one that is cut"


def test_bars_that_can_be_compared_are_whole() -> None:
    assert compare_picture.ceiling([10.0, 8.0, 39.0]) == 39.0
    assert compare_picture.ceiling([7.0]) == 7.0
    assert compare_picture.ceiling([]) == 0.0
    assert compare_picture.ceiling([10.0, 8.0, 9.0, 150.0]) == 12.5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--systems", "hybrimoe,fidler"), "Did you mean 'fiddler'?"),
        (("--schedules", "hybird"), "Did you mean 'hybrid'?"),
        (("--machines", "h200-emr"), "Did you mean 'h200-emr16'?"),
        (("--baseline", "adapmo"), "Did you mean 'adapmoe'?"),
        (("--cache-ratios", "a quarter"), "expected numbers between 0 and 1"),
        (("--cache-ratios", "2"), "none of these can run"),
        (("--cache-ratios", ","), "at least one"),
        (("--machines", ""), "at least one"),
        (("--jobs", "0"), "at least 1"),
        (("--plot", "absent/out.png"), "there is no directory"),
    ],
)
def test_a_mistake_is_one_line(
    words: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert message in refused(monkeypatch, capsys, "compare", *SMALL, *words)


def test_formats_for_other_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("compare", *SMALL, *ALONE, "--cache-ratios", "0", "--systems", "adapmoe,fiddler")
    rows = list(csv.DictReader(run(*words, "--format", "csv").out.splitlines()))
    expected = run_json(*words)
    assert [row["system"] for row in rows] == ["adapmoe", "fiddler"]
    assert "leaves no GPU slot" in rows[0]["skipped"]
    assert rows[0]["latency_s.mean"] == ""
    assert float(rows[1]["latency_s.mean"]) == expected[1]["latency_s"]["mean"]
    assert rows[1]["trace.source"] == expected[1]["trace"]["source"]

    head, ruler, *lines = run(*words, "--format", "md").out.splitlines()
    names = [each.strip() for each in head.strip("|").split("|")]
    assert names[:4] == ["model", "machine", "run", "cache"]
    assert names[-1] == "skipped"
    assert set(ruler) == {"|", "-", " "}
    assert len(lines) == 2
    assert all(line.count("|") == head.count("|") for line in lines)

    said = refused(monkeypatch, capsys, *words, "--format", "cvs")
    assert "Did you mean 'csv'?" in said
    said = refused(monkeypatch, capsys, *words, "--format", "md", "--json")
    assert "both --json and --format md" in said
