"""Are rows of docs/performance.md measured under the conditions that they show?"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.performance_options import MeasurementOptions, Programs, Sizes
from benchmarks.performance_page import PAGE, rendered
from benchmarks.performance_results import merged
from benchmarks.performance_row import PYTHON, Conditions, Row
from benchmarks.performance_rows import all_rows, shown
from benchmarks.performance_small import small_models
from click.testing import CliRunner

from benchmarks import performance, performance_process, performance_two_cores
from moesaic.cli.command_line import app
from moesaic.kernels.cores import all_cores
from moesaic.kernels.instruction_sets import KERNELS

ASKED = MeasurementOptions(
    Sizes(), Programs(Path("/llama-bench"), None, Path("/ik/llama-bench")), 16
)
TWO = performance_two_cores.SECTION


def two_core_rows(monkeypatch: pytest.MonkeyPatch, cores: list[int]) -> list[Row]:
    monkeypatch.setattr(performance_two_cores, "all_cores", lambda: cores)
    monkeypatch.setattr(performance_two_cores, "_siblings", lambda core: str(core // 2))
    return [row for row in all_rows(ASKED) if row.section == TWO]


def test_two_cores_are_not_threads_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = two_core_rows(monkeypatch, [4, 5, 6, 7])
    assert [row.name for row in rows] == [
        "bf16", "int4", "bf16-avx512-vnni", "int4-avx512-vnni", "int4-avx2",
    ]  # fmt: skip
    assert all(row.missing is None and row.conditions.cores == (4, 6) for row in rows)
    alone = two_core_rows(monkeypatch, [4, 5])
    assert all("2 cores are needed" in (row.missing or "") for row in alone)


def test_forced_kernels_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in two_core_rows(monkeypatch, [0, 2]):
        words = shown(row, ASKED)
        asked = row.name.partition("-")[2]
        assert words[: words.index("moesaic")][-3:] == ("taskset", "-c", "0,2")
        assert ("ONEDNN_MAX_CPU_ISA" in " ".join(words)) == bool(asked)
        assert ("--kernel" in words) == bool(asked)
        assert not asked or words[words.index("--kernel") + 1] == asked in KERNELS
        assert "ik_llama.cpp=$IK_LLAMA_BENCH" in words


def test_a_command_and_what_it_starts_have_its_conditions() -> None:
    core = all_cores()[-1]
    asks = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['SOME'])"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {asks!r}])"
    before = os.sched_getaffinity(0)
    conditions = Conditions((core,), {"SOME": "value"})
    ended = performance_process.run_command((PYTHON, "-c", code), 20.0, conditions)
    assert ended.printed.split() == [f"[{core}]", "value"]
    assert os.sched_getaffinity(0) == before, "it was for that command only"


def test_only_kernels_see_the_folder_of_kt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "before")
    asked = replace(ASKED, programs=Programs(kt=Path("/kt")))
    rows = all_rows(asked)
    assert {row.section for row in rows if row.conditions.kt is not None} == {"kernels"}
    code = "import os; print(os.environ['PYTHONPATH'], os.environ.get('LD_LIBRARY_PATH'))"
    for kt, found in ((None, "before"), (Path("/kt"), f"before{os.pathsep}/kt")):
        ended = performance_process.run_command((PYTHON, "-c", code), 20.0, Conditions(kt=kt))
        assert ended.printed.split()[0] == found
        assert ("kt_kernel.libs" in ended.printed) == (kt is not None)


def two_row(name: str, *figures: Any) -> dict[str, Any]:
    return {"section": TWO, "name": name, "command": f"measure {name}", "figures": list(figures)}


def figure(test: str, name: str, **more: float) -> dict[str, Any]:
    return {"test": test, "name": name, "tokens_per_s": 9.0, "low": 8.0, "high": 10.0, **more}


def test_goals_of_prompts_follow_our_kernels() -> None:
    found = [
        two_row(name, *(
            each for test in ("pp128", "tg48")
            for each in (figure(test, "moesaic"), figure(test, "llama.cpp", times=1.4))
        ))
        for name in ("int4", "int4-avx2")
    ]  # fmt: skip
    machine = {"isa": ["amx_tile"], "kernels": "amx"}
    run = {"date": "today", "machine": machine, "rows": found}
    page = rendered(PAGE.read_text(encoding="utf-8"), merged([run]))
    assert "| prompt of 128, int4 | amx | 9.00 (8.00 to 10.0) |" in page
    assert "| 1.40 (missed) | at least 3 |" in page
    assert "| 1.40 | at least 1.2 |" in page, "without AMX"
    assert page.count("| 1.40 (missed) | at least 1.5 |") == 2, "decode, with any kernels"


def npz(path: Path, layers: int) -> Path:
    """Routing of 8 experts, top-2, that names the chosen ones only."""
    random = np.random.default_rng(0)
    experts = np.argsort(random.random((400, layers, 8)), axis=-1)[:, :, :2].astype(np.uint8)
    np.savez(
        path, experts=experts, weights_u8=np.full(experts.shape, 100, dtype=np.uint8),
        doc_start=np.array([0, 200, 400]), domain=np.array(["a", "b"]),
    )  # fmt: skip
    return path


def test_a_recorded_routing_is_replayed(tmp_path: Path) -> None:
    trace = npz(tmp_path / "made-up_prefill.npz", 1)
    asked = replace(ASKED, sizes=small_models(tmp_path), deepseek_trace=trace)
    rows = {row.key: row for row in all_rows(asked)}
    row = rows["cuda:deepseek-int4"]
    words = list(shown(row, asked))
    assert words[words.index("--trace") + 1] == "$DEEPSEEK_TRACE"
    assert "--trace" not in rows["cuda:qwen-int4"].command
    short = [word for word in row.command if word not in ("--compare", "--no-stock")]
    short[short.index("0.25,0.5,0.75")] = "0.5"
    done = CliRunner().invoke(app, short[1:], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["routing_kind"] == "imported routing"
    assert [each["test"] for each in result["rows"]] == ["tg8"]


def test_a_routing_of_another_shape_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--out", str(tmp_path / "r.json"), "--small", "--list", "--deepseek-trace"]
    for path, said in (
        (npz(tmp_path / "two_prefill.npz", 2), "has 2 MoE layers, 8 experts, 2 experts per token"),
        (tmp_path / "none.npz", "No such file"),
        (PAGE, "magic"),
    ):
        monkeypatch.setattr(sys, "argv", ["performance", *words, str(path)])
        assert performance.main() == 2
        assert said in capsys.readouterr().err
