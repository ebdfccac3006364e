"""Does the picture of winners say which system is the fastest where, by how much, and why a place
has none?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import SMALL, refused, run, run_json
from drawn_pictures import check_readable, drawn

from moesaic.cli.study.comparison import ComparisonCell
from moesaic.cli.study.winners import winners
from moesaic.cli.study.winners_picture import draw_winners, headline, reason
from moesaic.hardware.machine_groups import OWN
from moesaic.hardware.machine_reader import load_machine

SYSTEMS = ("moesaic", "hybrimoe", "ktransformers", "adapmoe")
NO_ROOM = "m needs 1.0 GB for dense weights and 12.2 GB for 4608 experts; x has 12 GB. Use less"


def cell(system: str, machine: str, ratio: float, mean_s: float | None) -> ComparisonCell:
    known: Any = SimpleNamespace(machine=load_machine(machine))
    if mean_s is None:
        return ComparisonCell(system, machine, ratio, skipped=NO_ROOM)
    result = {
        "latency_s": {"mean": mean_s}, "tokens_per_s": 1 / mean_s, "phase": "decode", "batch": 1,
        "model": "m", "expert_dtype": "int4", "trace": {"synthetic": True, "origin": "synthetic"},
        "steps": 8,
    }  # fmt: skip
    return ComparisonCell(system, machine, ratio, result, settings=known)


def place(machine: str, ratio: float, *means: float | None) -> list[ComparisonCell]:
    return [cell(s, machine, ratio, mean) for s, mean in zip(SYSTEMS, means, strict=True)]


def test_the_fastest_has_its_factors_and_close_ones_are_level() -> None:
    cells = [
        *place(OWN[0], 0.25, 0.010, 0.012, 0.020, 0.015),
        *place(OWN[0], 0.5, 0.0100, 0.012, 0.0101, 0.015),
        *place(OWN[0], 0.75, None, None, None, None),
    ]
    clear, level, none = winners(cells, "ktransformers")
    assert (clear.system, clear.following, clear.clear) == ("moesaic", "hybrimoe", True)
    assert clear.over_baseline == pytest.approx(2.0)
    assert clear.over_next == pytest.approx(1.2)
    assert clear.tokens_per_s == pytest.approx(100)
    assert not level.clear
    assert headline(level) == "moesaic = ktransformers"
    assert none.skipped == NO_ROOM
    assert reason(NO_ROOM).endswith("x has 12 GB")
    alone = winners(place(OWN[0], 0.25, 0.01, None, None, None), "ktransformers")[0]
    assert alone.clear
    assert (alone.over_baseline, alone.over_next) == (None, None)


def test_every_cell_is_readable_and_says_its_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = []
    for at, machine in enumerate(OWN):
        for ratio in (0.25, 0.5, 0.75) if machine != "dgx-spark" else (1.0,):
            means: list[float | None] = [0.012, 0.013, 0.012, 0.016]
            means[at % 4] = 0.01
            room = machine != "rtx5070-r7-9700x" or ratio < 0.75
            cells += place(machine, ratio, *(means if room else [None] * 4))
    with drawn(monkeypatch) as figures:
        draw_winners("x.png", cells, "ktransformers")
    (figure,) = figures
    check_readable(figure)
    (axes,) = figure.axes
    assert axes.get_xlabel() == "share of the experts in GPU memory"
    assert axes.get_ylabel() == "host"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["25 %", "50 %", "75 %"]
    assert [label.get_text().split(" + ")[0] for label in axes.get_yticklabels()][:2] == [
        "RTX 5070 12 GB", "RTX 3090",
    ]  # fmt: skip
    said = [text.get_text() for text in axes.texts]
    assert sum("one memory: the GPU reads every expert" in text for text in said) == 1
    assert any("4608" in text and "experts" in text for text in said)
    assert any("x static placement" in text for text in said)
    _check_inside_their_cells(figure, axes)


def _check_inside_their_cells(figure: Any, axes: Any) -> None:
    boxes = [patch.get_window_extent() for patch in axes.patches]
    for text in axes.texts:
        extent = text.get_window_extent()
        middle = (extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2
        (own,) = (box for box in boxes if box.contains(*middle))
        assert own.x0 <= extent.x0 < extent.x1 <= own.x1, text.get_text()
        assert own.y0 <= extent.y0 < extent.y1 <= own.y1, text.get_text()


def test_one_memory_runs_once_at_its_only_ratio(tmp_path: Path) -> None:
    picture = tmp_path / "winners.png"
    machines = "dgx-spark,rtx3090-r9-5950x"
    words = ("--machines", machines, "--cache-ratios", "0.25,0.5", "--systems", "ktransformers")
    more = ("--jobs", 1, "--plot", picture, "--plot-kind", "winners")
    rows = run_json("compare", *SMALL, *words, *more)
    places = [(row["machine"], row["cache_ratio"]) for row in rows]
    assert places == [
        ("dgx-spark", 1.0), ("rtx3090-r9-5950x", 0.25), ("rtx3090-r9-5950x", 0.5),
    ]  # fmt: skip
    assert rows[0]["hit_rate"] == 1.0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run_json("simulate", *SMALL, "--machine", "dgx-spark")["cache_ratio"] == 1.0


def test_a_table_of_winners_stands_below_the_others(tmp_path: Path) -> None:
    words = ("--systems", "ktransformers,adapmoe", "--cache-ratios", "0,0.5", "--jobs", 1)
    plot = ("--plot", tmp_path / "x.svg", "--plot-kind", "winners")
    lines = run("compare", *SMALL, *words, *plot).out.splitlines()
    title = next(at for at, line in enumerate(lines) if "The fastest per machine" in line)
    half = next(line for line in lines[title:] if "50%" in line)
    assert "ktransformers" in half
    assert "adapmoe" in half


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--plot", "x.png", "--plot-kind", "pie"), "bars, winners"),
        (("--plot-kind", "winners"), "add --plot FILE"),
        (
            ("--plot", "x.png", "--plot-kind", "winners", "--sweep", "pcie.gb_s=10,20"),
            "leave --sweep out",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_any_run(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(monkeypatch, capsys, "compare", *SMALL, *words)


def test_the_same_cells_in_another_order_have_the_same_winner() -> None:
    cells = place(OWN[0], 0.25, 0.010, 0.012, 0.020, 0.015)
    one, other = (winners(each, "ktransformers")[0] for each in (cells, cells[::-1]))
    assert replace(one, skipped=None) == other
