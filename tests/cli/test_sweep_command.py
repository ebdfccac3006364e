"""Does a sweep run every system on every machine of it, say what it left out, and refuse what it
cannot understand?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command import SMALL, refused, run, run_json

from moesaic.cli.shared.what_if_options import MAX_RUNS
from moesaic.cli.study import sweep_picture
from moesaic.cli.study.comparison import ComparisonCell
from moesaic.core.errors import ImpossibleSetting
from moesaic.workloads.bundled_traces import bundled_trace

ALONE = ("--jobs", 1)
NDP = ("--machine", "h200-emr16-ndp", "--model", "deepseek-v2-lite", "--batch", 4)
SYSTEMS = ("--systems", "ktransformers,trimoe")


def test_every_point_runs_and_says_what_it_left_out() -> None:
    sweeps = ("--sweep", "ndp.count=0,4", "--sweep", "cpu.tflops=8,16")
    rows = run_json("compare", *NDP, *SMALL, *ALONE, *SYSTEMS, *sweeps)
    points = [(row["swept"]["ndp.count"], row["swept"]["cpu.tflops"]) for row in rows]
    assert points == [(n, t) for n in (0, 4) for t in (8, 16) for _ in range(2)]
    left_out = [row for row in rows if "skipped" in row]
    assert [row["system"] for row in left_out] == ["trimoe", "trimoe"]
    assert {row["swept"]["ndp.count"] for row in left_out} == {0}
    assert "no DIMM here has a unit" in left_out[0]["skipped"]
    assert all(row["speedup"] > 0 for row in rows if "skipped" not in row)
    last = rows[-1]
    alone = run_json(
        "simulate", *NDP, *SMALL, "--policies", "trimoe", "--set", "ndp.count=4", "--set",
        "cpu.tflops=16",
    )  # fmt: skip
    assert last["latency_s"] == alone["latency_s"]
    assert alone["machine"] == "h200-emr16-ndp with ndp.count=4, cpu.tflops=16"


def test_a_machine_of_gpu_and_cpu_with_runs_of_several_batches() -> None:
    """Twice the link loads in half the time; each run has its own batch and cache."""
    words = ("--machine", "h200-emr16", "--model", "deepseek-v2-lite", "--systems", "adapmoe")
    more = ("--sweep", "pcie.gb_s=27,54", "--sweep", "batch=1,2", "--sweep", "cache_ratio=0.1,0.5")
    rows = run_json("compare", *words, *SMALL, *ALONE, *more)
    assert len(rows) == 8
    by = {tuple(row["swept"].values()): row for row in rows}
    for (_, batch, ratio), row in by.items():
        assert (row["batch"], row["cache_ratio"]) == (batch, ratio)
    for batch in (1, 2):
        slow, fast = (by[gb_s, batch, 0.1]["latency_s"]["mean"] for gb_s in (27, 54))
        assert slow > 1.5 * fast
        assert by[54, batch, 0.5]["latency_s"]["mean"] < fast


def test_the_table_has_a_column_per_sweep_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    shown = run("compare", *NDP, *SMALL, *ALONE, *SYSTEMS, "--sweep", "ndp.count=0,16").out
    assert "synthetic routing" in shown
    assert "ndp.count" in shown
    assert "trimoe at 25% on h200-emr16-ndp with ndp.count=0 " in shown
    assert "no DIMM here has a unit for that" in shown


def test_a_machine_that_cannot_be_is_one_point_left_out() -> None:
    words = ("compare", *NDP, *SMALL, *ALONE, "--systems", "ktransformers")
    rows = run_json(*words, "--sweep", "dimms.count=12,16")
    assert "dimms.count: expected a multiple of the 8 channels" in rows[0]["skipped"]
    assert "latency_s" in rows[1]


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_help_lists_names_with_values_and_units(command: str) -> None:
    option = "--set" if command == "simulate" else "--sweep"
    shown = run(command, "--machine", "h200-emr16-ndp", option, "help").out
    rows = [[word.strip() for word in line.split("│")[1:4]] for line in shown.splitlines()]
    assert ["ndp.count", "16", ""] in rows
    assert ["pcie.gb_s", "54", "GB/s"] in rows
    assert ["dimm_link.topology", "per-dimm", ""] in rows
    assert ("batch" in shown) == (command == "compare")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sweep", "ndp.counts=1,2"), "has no such number. Did you mean 'ndp.count'?"),
        (("--sweep", "ndp.counts=1,2"), "ndp.count (16)"),
        (("--sweep", "ndp.counts=1,2"), "pcie.gb_s (54 GB/s)"),
        (("--sweep", "ndp.count=many"), "ndp.count is 'many': expected a number"),
        (("--sweep", "batch=4,many"), "--sweep batch: 'many' is not a whole number"),
        (("--sweep", "ndp.count="), "expected NAME=A,B,..., as in ndp.count=0,4,8"),
        (("--sweep", "ndp.count=,,"), "expected NAME=A,B,..."),
        (("--sweep", "ndp.count"), "expected NAME=A,B,..."),
        (("--sweep", "ndp.count=4,8,4.0"), "4 is there twice"),
        (("--sweep", "ndp.count=4", "--sweep", "ndp.count=8"), "names ndp.count twice"),
        (("--sweep", "ndp.count=4", "--set", "ndp.count=8"), "ndp.count is swept and given"),
        (("--sweep", "batch=4", "--batch", "8"), "batch is swept and given another way too"),
        (("--sweep", "cache_ratio=0.5", "--cache-ratios", "0.1"), "cache_ratio is swept and"),
        (("--sweep", "pcie.gb_s=-1,54"), "pcie.gb_s is -1: expected a number above 0"),
        (("--sweep", "pcie.gb_s=0"), "pcie.gb_s is 0: expected a number above 0"),
        (("--sweep", "pcie.gb_s=nan"), "pcie.gb_s is nan: expected a finite number"),
        (("--sweep", "pcie.gb_s=inf"), "pcie.gb_s is inf: expected a finite number"),
        (("--sweep", "ndp.count=2.5"), "ndp.count is 2.5: expected a whole number"),
        (("--sweep", "dimm_link.topology=torus"), "expected one of per-dimm, ring, bus"),
        (("--sweep", "ndp.count=17"), "ndp.count: expected at most the 16 DIMMs, not 17"),
        (("--set", "batch=8"), "it is no number of the machine: use --batch"),
        (("--set", "cpu.cores=8", "--set", "cpu.cores=9"), "names cpu.cores twice"),
    ],
)
def test_what_cannot_be_understood_is_refused(
    words: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    how = ("--machine", "h200-emr16-ndp", "--model", "deepseek-v2-lite", *SMALL)
    assert message in refused(monkeypatch, capsys, "compare", *how, *words)


def test_too_many_runs_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = ",".join(str(1 + number) for number in range(MAX_RUNS // 2 + 1))
    how = ("compare", "--sweep", f"pcie.gb_s={values}", "--systems", "moesaic,ktransformers")
    assert f"asks for {2 * (MAX_RUNS // 2 + 1)} runs" in refused(monkeypatch, capsys, *how)


def test_a_machine_without_dimms_names_those_that_have_some(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ("compare", "--machine", "h200-emr16", "--sweep", "ndp.count=4")
    said = refused(monkeypatch, capsys, *how)
    assert "h200-emr16 has no such number. Machines that have it: h200-emr16-ndp" in said


def test_a_trace_of_another_model_is_refused_before_any_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = bundled_trace("deepseek-v2-lite")
    assert trace is not None
    how = ("compare", "--model", "qwen3-30b-a3b", "--trace", trace, "--sweep", "cpu.tflops=1,2")
    said = refused(monkeypatch, capsys, *how, "--machine", "h200-emr16")
    assert "the trace is of deepseek-v2-lite" in said
    assert "the model qwen3-30b-a3b has 48 layers" in said


def cell(label: str, speed: float | None, **swept: Any) -> ComparisonCell:
    point = tuple((name.replace("_", ".", 1), value) for name, value in swept.items())
    result = {
        "tokens_per_s": speed, "phase": "decode", "model": "m", "expert_dtype": "bf16",
        "batch": 64, "trace": {"synthetic": True, "origin": "synthetic"},
    }  # fmt: skip
    if speed is None:
        return ComparisonCell(label, "box", 0.25, skipped="no units", swept=point)
    return ComparisonCell(label, "box", 0.25, result, swept=point)


def drawn(cells: list[ComparisonCell], monkeypatch: pytest.MonkeyPatch) -> Any:
    figures: list[Any] = []
    monkeypatch.setattr(sweep_picture, "save", lambda figure, path: figures.append(figure))
    sweep_picture.draw_sweep("x.png", cells)
    return figures[0]


def test_a_line_per_system_and_a_panel_per_further_value(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [
        cell(label, None if label == "b" and n == 0 else 10.0 + n, ndp_count=n, cpu_tflops=t)
        for n in (0, 4, 16)
        for t in (1, 2)
        for label in ("a", "b")
    ]
    figure = drawn(cells, monkeypatch)
    axes = [each for each in figure.axes if each.get_visible()]
    assert [each.get_title(loc="left") for each in axes] == ["cpu.tflops=1", "cpu.tflops=2"]
    for each in axes:
        assert [line.get_label() for line in each.get_lines()] == ["a", "b"]
        assert each.get_lines()[0].get_xdata().tolist() == [0, 4, 16]
        assert each.get_lines()[0].get_ydata().tolist() == [10, 14, 26]
        assert each.get_xlabel() == "ndp.count"
    assert "decode, batch 64, bf16 experts, synthetic routing" in figure.get_suptitle()
    assert "b left out at ndp.count=0" in figure.legends[0].get_title().get_text()


def test_rules_are_drawn_as_words_and_large_ratios_as_logarithms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speeds = {"per-dimm": 1.0, "ring": 2.0, "bus": 50.0}
    figure = drawn([cell("a", s, dimm_topology=t) for t, s in speeds.items()], monkeypatch)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_xticklabels()] == list(speeds)
    assert axes.get_yscale() == "log"


def test_more_panels_than_can_be_read_are_refused() -> None:
    cells = [cell("a", 1.0, ndp_count=1, cpu_tflops=t) for t in range(30)]
    with pytest.raises(ImpossibleSetting, match="30 panels; at most 24"):
        sweep_picture.panels(cells)


def test_a_picture_is_written(tmp_path: Path) -> None:
    plot = tmp_path / "sweep.svg"
    run(
        "compare", *NDP, *SMALL, *ALONE, "--systems", "ktransformers", "--sweep",
        "pcie.gb_s=27,54", "--plot", plot,
    )  # fmt: skip
    assert "<svg" in plot.read_text()
