"""Does `moesaic trace` do what it promises, and say clearly what it cannot do?"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click import Group
from click.testing import CliRunner, Result
from command import refused

from moesaic.cli.command_line import COMMANDS, app
from moesaic.cli.trace.trace import trace
from moesaic.core.errors import MoesaicError
from moesaic.workloads.block import join
from moesaic.workloads.bundled_traces import bundled_trace
from moesaic.workloads.source import open_trace
from moesaic.workloads.synthetic import fit
from moesaic.workloads.writer import write_trace


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, words)])


def run_json(*words: object) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


SHAPE = ("--layers", 4, "--experts", 16, "--top-k", 2)


def test_synthesize_info_convert(tmp_path: Path) -> None:
    made = tmp_path / "made.moet"
    result = run("synthesize", *SHAPE, "--tokens", 300, "--seed", 5, "-o", made)
    assert result.exit_code == 0, result.output
    assert "overlap_1" in result.stdout
    assert "not expected to be equal" in result.stdout

    info = run_json("info", made)
    assert info["tokens"] == 300
    assert info["header"]["seed"] == 5
    assert "/" not in info["header"]["metadata"]["command"]  # nothing of this machine
    assert 0 < info["statistics"]["lru_cold_50"] < 1

    copy = tmp_path / "copy.moet"
    assert run_json("convert", made, copy) == {"output": str(copy), "tokens": 300}
    assert copy.read_bytes() == made.read_bytes()


def gated_trace(path: Path) -> Path:
    """A synthetic trace whose tokens use one or two experts, the model being surer of some."""
    made = path.with_suffix(".whole")
    run_json("synthesize", *SHAPE, "--tokens", 200, "-o", made)
    source = open_trace(made)
    header = replace(source.header, has_counts=True, has_confidence=True)
    block = join(list(source.blocks()))
    columns = {
        "counts": (np.arange(200) % 2 + 1).astype(np.uint16),
        "top": np.where(np.arange(200) % 4, 0.5, 0.9).astype(np.float32),
        "margin": np.full(200, 0.25, np.float32),
        "entropy": np.full(200, np.nan, np.float32),
    }
    write_trace(path, header, [replace(block, **columns)])  # type: ignore[arg-type]
    return path


def test_info_and_convert_keep_counts_and_confidence(tmp_path: Path) -> None:
    made, copy = gated_trace(tmp_path / "gated.moet"), tmp_path / "copy.moet"
    found = run_json("info", made)["statistics"]
    assert found["experts_per_token"] == 1.5
    assert found["confidence_top"] == pytest.approx(0.6)
    assert found["confidence_above_70"] == pytest.approx(0.25)
    assert found["confidence_margin"] == 0.25
    assert "confidence_entropy" not in found
    shown = run("info", made).stdout
    assert "above_70 0.250" in shown
    assert "experts_per_token" in shown
    run_json("convert", made, copy)
    assert copy.read_bytes() == made.read_bytes()


def test_compare_takes_traces_whose_tokens_use_fewer(tmp_path: Path) -> None:
    made = gated_trace(tmp_path / "gated.moet")
    whole = made.with_suffix(".whole")
    found = run_json("compare", made, whole)
    ragged, plain = (column["hit_rates"] for column in found["traces"])
    assert ragged["lru_25"] != plain["lru_25"]
    assert 0 < ragged["belady_25"] <= 1


def test_a_trace_of_version_1_is_converted(tmp_path: Path) -> None:
    old, new = bundled_trace("deepseek-v2-lite"), tmp_path / "new.moet"
    assert old is not None
    assert Path(old).read_bytes()[8] == 1
    run_json("convert", old, new)
    assert new.read_bytes()[8] == 2
    pairs = zip(open_trace(old).blocks(), open_trace(new).blocks(), strict=True)
    assert all(np.array_equal(a.experts, b.experts) for a, b in pairs)
    assert open_trace(new).header == open_trace(old).header


@pytest.mark.parametrize("file", ["bundled", bundled_trace("deepseek-v2-lite")])
def test_info_as_tables(file: object) -> None:
    result = run("info", file)
    assert result.exit_code == 0, result.output
    assert "num_experts" in result.stdout
    assert "lru_warm" in result.stdout


def test_synthesize_for_a_known_model_with_forecasts(tmp_path: Path) -> None:
    made = tmp_path / "m.moet"
    words = ("--model", "mixtral-8x7b", "--tokens", 40, "--forecast-depth", 2, "-o", made)
    found = run_json("synthesize", *words)
    assert found["calibration"] == "mixtral-8x7b"
    header = open_trace(made).header
    assert (header.num_layers, header.num_experts, header.forecast_depth) == (32, 8, 2)


def test_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "TRIAL_TOKENS", 600)
    monkeypatch.setattr(fit, "ROUNDS", 1)
    made, output = tmp_path / "made.moet", tmp_path / "mine.json"
    run_json("synthesize", *SHAPE, "--tokens", 1200, "-o", made)
    found = run_json("fit", made, "-o", output)
    assert found["name"] == "mine"
    assert "predict_1" in found["synthetic_statistics"]
    assert str(tmp_path) not in output.read_text()
    again = run_json("synthesize", "--calibration", output, *SHAPE, "--tokens", 50, "-o", made)
    assert again["calibration"] == "mine"
    assert set(again["statistics"]) == {"real", "synthetic"}
    shown = run("synthesize", "--calibration", output, *SHAPE, "--tokens", 50, "-o", made).stdout
    assert "fitted to" in shown  # what it is calibrated on is synthetic itself
    assert "real" not in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("synthesize", "--tokens", 5, "--layers", 3), "either --model, or all of"),
        (("synthesize", "--tokens", 5, "--model", "mixtal-8x7b"), "Did you mean"),
        (("synthesize", *SHAPE, "--tokens", 5, "--calibration", "none"), "unknown calibration"),
        (("synthesize", *SHAPE, "--tokens", 5, "--ranks", 1), "ranks: must be from 2 to 16"),
    ],
)
def test_mistakes_leave_no_file(tmp_path: Path, words: tuple[object, ...], message: str) -> None:
    result = run(*words, "-o", tmp_path / "out.moet")
    assert isinstance(result.exception, MoesaicError)
    assert message in str(result.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("info", "absent.moet"), "absent.moet: No such file"),
        (("fit", "absent.moet", "-o", "x.json"), "absent.moet: No such file"),
        (("convert", "absent.npz", "x.moet"), "absent.npz: No such file"),
        (("convert", "bundled", "x.npz"), "give a name that ends in it"),
        (("synthesize", *SHAPE, "--tokens", 5, "-o", "x.NPZ"), "traces are written as .moet"),
        (("synthesize", *SHAPE, "--tokens", 5, "-o", "absent/x.moet"), "there is no directory"),
        (("fit", "bundled", "-o", "."), "is a directory"),
        (("info",), "Missing argument 'FILE'; see moesaic trace info --help"),
        (("synthesize", "--tokens", 0, "-o", "x.moet"), "'--tokens'"),
        (("info", "bundled", "--jsno"), "--json"),
    ],
)
def test_every_mistake_is_said_in_one_style(
    words: tuple[object, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused(monkeypatch, capsys, "trace", *words)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    for words in (("info", path), ("convert", path, tmp_path / "o"), ("fit", path, "-o", "x")):
        assert "must be a .moet trace" in str(run(*words).exception)


def test_the_first_help_names_every_trace_command() -> None:
    assert isinstance(trace, Group)
    assert all(command in COMMANDS["trace"][1] for command in trace.commands if command != "info")


def test_no_empty_line_is_left_where_no_bar_can_be_drawn() -> None:
    assert run("info", "bundled", "--max-tokens", 200).stderr == ""


def test_help_loads_no_numbers() -> None:
    code = (
        "import sys; from moesaic.cli.trace.trace import trace; "
        "trace.main(['synthesize', '--help'], standalone_mode=False); "
        "sys.exit(any(m in sys.modules for m in ('numpy', 'numba')))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode
        == 0
    )
