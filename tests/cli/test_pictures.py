"""Can pictures be read: nothing cut, nothing unknown drawn as zero, axes with their units?"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from command import SMALL, run
from drawn_pictures import check_readable, drawn

from moesaic.cli.shared.pictures import legend_below, new_figure, title_above
from moesaic.cli.shared.timeline_picture import _names
from moesaic.cli.study.comparison import ComparisonCell
from moesaic.core.chrome_trace import _event
from moesaic.core.report import Span, experts_span
from moesaic.workloads.block import PREFILL, RoutingBlock
from moesaic.workloads.header import TraceHeader
from moesaic.workloads.writer import write_trace

TRACES = {"long": 40, "short": 12}  # tokens of their documents; 32 is the largest distance


@pytest.mark.parametrize("names", [3, 7, 30])
@pytest.mark.parametrize("letters", [5, 40, 200])
def test_a_legend_of_any_size_lies_inside(names: int, letters: int) -> None:
    from matplotlib.patches import Patch

    figure = new_figure(6.0, 3.0)
    axes = figure.subplots()
    axes.set(xlabel="time in seconds", ylabel="tokens per second")
    title_above(figure, "word " * 40)
    legend_below(figure, [Patch(label=f"{n}" * letters) for n in range(names)], title="a note")
    check_readable(figure)
    assert axes.get_window_extent().height > 0.2 * 3.0 * 150, "the panel keeps its room"


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_a_timeline(phase: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with drawn(monkeypatch) as figures:
        run("simulate", *SMALL, "--phase", phase, "--timeline", tmp_path / "step.png")
    check_readable(figures[0])
    units = {axes.get_xlabel() for axes in figures[0].axes}
    assert len(units) == 1, "both panels have the same unit"
    assert units <= {"time in milliseconds", "time in microseconds"}


def test_a_timeline_shows_every_lane_that_worked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Compute units of DIMMs, too: without them the step looks idle where they work."""
    machine = ("--machine", "h200-emr16-ndp", "--policies", "trimoe", "--batch", 16)
    words = (*machine, "--tokens", 2, "--warmup", 1)
    with drawn(monkeypatch) as figures:
        run("simulate", *words, "--timeline", tmp_path / "step.png")
    check_readable(figures[0])
    for axes in figures[0].axes:
        rows = [text.get_text() for text in axes.get_yticklabels()]
        assert {"GPU", "CPU", "NDP\n16 units"} <= set(rows)
        assert len(axes.collections) > 16, "bars of every unit"
    numbers = [text.get_window_extent() for text in figures[0].axes[1].texts]
    assert not any(a.overlaps(b) for i, a in enumerate(numbers) for b in numbers[:i])


def cell(label: str, machine: str, swept: tuple[tuple[str, object], ...] = ()) -> ComparisonCell:
    result = {
        "latency_s": {"mean": 0.0123}, "floor_s": 1e-3, "steps": 1, "phase": "decode", "batch": 1,
        "model": "a-model", "expert_dtype": "bf16",
        "trace": {"synthetic": True, "origin": "synthetic"},
        "tokens_per_s": 81.3,
    }  # fmt: skip
    return ComparisonCell(label, machine, 0.25, result, swept=swept)


COMBINATIONS = [
    f"{schedule}+{cache}+{prefetch}"
    for schedule in ("hybrid", "best-split")
    for cache in ("lru", "mrs:alpha=0.3,pool=global", "belady")
    for prefetch in ("none", "impact")
]


@pytest.mark.parametrize("machines", [1, 3])
def test_a_comparison(machines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from moesaic.cli.study.compare_picture import draw_comparison

    cells = [cell(name, f"machine-{n}") for n in range(machines) for name in COMBINATIONS]
    with drawn(monkeypatch) as figures:
        draw_comparison("x.png", cells)
    check_readable(figures[0])
    shown = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert "hybrid+lru" in shown
    assert "hybrid+lru+impact" in shown
    assert {axes.get_ylabel() for axes in figures[0].axes[:machines]} == {"milliseconds"}


@pytest.mark.parametrize(
    ("name", "label"),
    [("batch", "batch size in sequences"), ("expert_dtype", "precision of the experts")],
)
def test_a_sweep(name: str, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from moesaic.cli.study.sweep_picture import draw_sweep

    values = ("bf16", "int4") if name == "expert_dtype" else (1, 64)
    cells = [
        cell(label, "box", swept=((name, value),)) for label in COMBINATIONS for value in values
    ]
    with drawn(monkeypatch) as figures:
        draw_sweep("x.png", cells)
    check_readable(figures[0])
    (axes,) = figures[0].axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == (label, "tokens per second")


def write(path: Path, length: int) -> Path:
    header = TraceHeader(path.stem, num_layers=2, num_experts=8, top_k=2, ranks=2)
    rng = np.random.default_rng(length)
    blocks = (
        RoutingBlock(
            np.full(length, number, np.uint32),
            np.arange(length, dtype=np.uint32),
            np.full(length, PREFILL, np.uint8),
            np.argsort(rng.random((length, 2, 8)), axis=-1)[..., :2].astype(np.uint8),
        )
        for number in range(4)
    )
    write_trace(path, header, blocks)
    return path


def test_an_unknown_overlap_is_a_gap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Documents of 12 tokens have none that stands 32 before another."""
    files = [write(tmp_path / f"{name}.moet", length) for name, length in TRACES.items()]
    with drawn(monkeypatch) as figures:
        shown = run("trace", "compare", *files, "--plot", tmp_path / "x.png").out
    check_readable(figures[0])
    reuse = figures[0].axes[1]
    known = {
        line.get_label(): np.isfinite(line.get_ydata()).sum()
        for line in reuse.get_lines()
        if len(line.get_xdata()) == 5
    }
    assert known == {"long prefill": 5, "short prefill": 4}
    assert "unknown at 32, documents are shorter: short prefill" in reuse.get_xlabel()
    assert "long" not in reuse.get_xlabel()
    (gini,) = (line for line in shown.splitlines() if " gini_document " in line)
    assert "unknown" in gini


def test_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    from moesaic.cli.study.eval_picture import draw_scores

    score = {"task": "problems", "group": "held_out_numbers", "right": 5, "asked": 5, "share": 1.0}
    score |= {"low": 0.56, "high": 1.0, "kind": None}
    unknown = {**score, "kind": "word", "share": None, "low": None, "high": None}
    with drawn(monkeypatch) as figures:
        draw_scores("x.png", {"model": "a-model", "scores": [score, unknown], "texts": []})
    check_readable(figures[0])
    (axes,) = figures[0].axes
    assert len(axes.patches) == 1, "what is unknown is no bar"
    assert "%" in axes.get_xlabel()


def test_figures_of_trimoe(monkeypatch: pytest.MonkeyPatch) -> None:
    from test_reproduce_trimoe import ids

    from moesaic.cli.study.reproduce_trimoe import draw
    from moesaic.reproductions.row import Row

    rng = random.Random(0)
    rows = [Row(name, "", None, rng.uniform(0.1, 3), "x", "", "") for name in ids()]
    with drawn(monkeypatch) as figures:
        draw("folder", "png", rows)
    assert len(figures) == 8
    for figure in figures:
        check_readable(figure)


def test_figures_of_mobile(monkeypatch: pytest.MonkeyPatch) -> None:
    from test_reproduce_mobile import made_up, speeds

    from moesaic.cli.study.mobile_pictures import draw_all
    from moesaic.lab.gating.tally import tallies
    from moesaic.reproductions.mobile.table import Found

    taken = {"full": 4.0, "gamma=0": 2.0, "gamma=0.7": 2.5, "gamma=0.99": 3.2}
    with drawn(monkeypatch) as figures:
        draw_all("folder", Found(tallies(made_up()), speeds(taken)))
    assert len(figures) == 2
    for figure in figures:
        check_readable(figure)


# How a call that computes several experts is named in pictures and Chrome traces.

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
