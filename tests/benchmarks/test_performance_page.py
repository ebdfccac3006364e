"""Is docs/performance.md what the results say, and does a run keep what it has?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from benchmarks.performance_figures import figures
from benchmarks.performance_goals import Goal, cpu_prompt
from benchmarks.performance_options import MeasurementOptions, Programs, Sizes
from benchmarks.performance_page import PAGE, RENDERED, RESULTS, rendered
from benchmarks.performance_results import merged
from benchmarks.performance_row import PYTHON, Row
from benchmarks.performance_rows import SECTIONS, all_rows, shown

from benchmarks import performance, performance_file, performance_process, performance_run
from moesaic.core.errors import ImpossibleSetting, UnknownName

LLAMA = Path("/somewhere/llama-bench")
ASKED = MeasurementOptions(
    Sizes(), Programs(LLAMA, Path("/cuda/llama-bench"), Path("/ik/llama-bench")), 16
)


def of_test(test: str, name: str, tokens_per_s: float, times: float | None = None) -> Any:
    row = {"test": test, "name": name, "tokens_per_s": tokens_per_s, "low": 1.0, "high": 2.0}
    return row if times is None else row | {"times": times}


def on_gpu(test: str, name: str, share: float, tokens_per_s: float, **more: float) -> Any:
    return {"test": test, "name": name, "cache_ratio": share, "tokens_per_s": tokens_per_s, **more}


def made(section: str, name: str, *found: Any, **more: Any) -> dict[str, Any]:
    command = f"measure {section} {name}"
    return {"section": section, "name": name, "command": command, "figures": list(found), **more}


def run_of(*rows: dict[str, Any], **machine: Any) -> dict[str, Any]:
    described = {"cpu": "A processor", "cores": 16, "isa": ["amx_tile"], **machine}
    return {"date": "today", "commit": "abc1234", "machine": described, "rows": list(rows)}


def region(page: str, section: str) -> str:
    return page.partition(f"<!-- {section} -->\n")[2].partition(f"\n<!-- end of {section} -->")[0]


def page_of(*runs: dict[str, Any]) -> str:
    return rendered(PAGE.read_text(encoding="utf-8"), merged(runs))


def test_the_page_is_what_the_committed_results_render_to() -> None:
    committed = [performance_file.read(path) for path in sorted(RESULTS.glob("*.json"))]
    page = PAGE.read_text(encoding="utf-8")
    assert rendered(page, merged(committed)) == page, "python -m benchmarks.performance write"


def test_the_later_run_counts_whatever_its_file_is_called() -> None:
    row = {"section": "kernels", "name": "layer", "command": "c"}
    runs = [
        {**run_of({**row, "figures": [{"run": date}]}), "date": date}
        for date in ("2026-02-03 04:05 UTC", "2026-02-03 01:02 UTC")
    ]
    found = merged(runs).row("kernels", "layer")
    assert found is not None
    assert found.figures == [{"run": "2026-02-03 04:05 UTC"}]
    assert found.run == 2


def test_programs_on_a_cpu_are_set_against_the_better_one() -> None:
    found = region(
        page_of(
            run_of(
                made(
                    "cpu", "bf16",
                    of_test("pp512", "moesaic", 1600.0), of_test("pp512", "llama.cpp", 400.0, 4.0),
                    of_test("tg48", "moesaic", 58.0), of_test("tg48", "llama.cpp", 40.0, 1.45),
                    of_test("tg48", "ik_llama.cpp", 46.0, 1.26),
                    of_test("tg48", "transformers", 8.0, 7.2),
                ),
                made("cpu", "bf16-alone", on_gpu("tg48", "moesaic", 0.0, 57.0, floor_ratio=1.21)),
                made("cpu", "int4", failed="neither was given"),
            )
        ),
        "cpu",
    )  # fmt: skip
    prompt, decode = (
        line for line in found.splitlines() if line.endswith(", bf16 |") or "bf16 |" in line
    )
    assert "| 4.00 | at least 4 |" in prompt
    assert "| 1.26 (missed) | at least 1.3 | 7.20 | 1.21 |" in decode, "ik_llama.cpp is the better"
    assert "measure cpu bf16  # run 1" in found
    assert "- `int4` in run 1: neither was given" in found


def test_ratios_beside_a_gpu_are_taken_at_each_share() -> None:
    shares = (0.25, 0.5, 0.75)
    rows = [
        on_gpu("tg64", name, share, rate * (1 + share), floor_ratio=1.3)
        for name, rate in (("moesaic", 100.0), ("ktransformers", 80.0), ("llama.cpp", 50.0))
        for share in shares
    ]
    driven = [on_gpu("tg64", "ktransformers", share, 40.0 * (1 + share)) for share in shares[:2]]
    batches = [on_gpu("tg16@64", "moesaic", 0.5, 900.0), on_gpu("tg16@64", "fiddler", 0.5, 500.0)]
    found = region(
        page_of(
            run_of(
                made("cuda", "qwen-int4", *rows, notes=["not compared: it was busy"]),
                made("cuda", "layerwise-int4", *driven),
                made("cuda", "batches-int4", *batches),
            )
        ),
        "cuda",
    )
    assert "| static experts (ktransformers) | 100 | 120 | 140 |" in found
    assert "at least 2.5 | 2.00 (missed) | 2.00 (missed) | 2.00 (missed) |" in found
    assert "at least 1.7 | 2.50 | 2.50 | – |" in found
    assert "at most 1.35 | 1.30 | 1.30 | 1.30 |" in found
    assert "| tg16@64, int4 | 900 | 500 | threshold (fiddler) | 1.80 |" in found
    assert "not compared: it was busy" in found


def test_later_figures_replace_earlier_ones_and_failures_do_not() -> None:
    floor = {"layers": 12, "precision": "bf16", "batch": 1, "ms": 17.0, "tokens_per_s": 58.8}
    first = run_of(made("cpu-floor", "12-bf16", floor | {"floor_ratio": 1.2}))
    second = run_of(made("cpu-floor", "12-bf16", floor | {"floor_ratio": 1.3}))
    failed = run_of(made("cpu-floor", "12-bf16", failed="no memory"))
    assert "1.30 (missed)" in region(page_of(first, second), "cpu-floor")
    kept = region(page_of(first, failed), "cpu-floor")
    assert "| 1.20 |" in kept
    assert "no memory" not in kept
    assert "Not measured yet" in region(page_of(), "cpu-floor")


def test_goals_judge_what_is_shown() -> None:
    assert Goal(1.3).cell(1.2951) == "1.30"
    assert Goal(1.25, at_most=True).cell(1.2551) == "1.26 (missed)"
    assert (cpu_prompt("int4", ["amx_tile"]).asked, cpu_prompt("int4", []).asked) == (3.0, 1.2)


def test_every_section_has_rows_and_a_region() -> None:
    rows = all_rows(ASKED)
    assert {row.section for row in rows} == set(SECTIONS) == set(RENDERED)
    assert len({row.key for row in rows}) == len(rows)
    assert all(row.missing is None for row in rows)
    without = all_rows(MeasurementOptions(Sizes(), Programs(), 16))
    assert {row.key for row in without if row.missing} >= {"cpu:int4", "cpu-olmoe:bf16"}
    with pytest.raises(UnknownName, match="gpu"):
        performance_run.chosen(rows, "gpu")
    only = performance_run.chosen(rows, "cuda-gates,cuda:qwen-int4")
    assert [row.key for row in only] == ["cuda-gates:gates", "cuda:qwen-int4"]


def test_commands_are_shown_without_this_machines_paths() -> None:
    text = [word for row in all_rows(ASKED) for word in shown(row, ASKED)]
    for path in (ASKED.programs.llama, ASKED.programs.cuda, ASKED.programs.ik):
        assert not any(str(path) in word for word in text)
    assert {"llama.cpp=$LLAMA_BENCH", "llama.cpp=$LLAMA_BENCH_CUDA"} <= set(text)


def script(name: str, code: str, reader: str = "lines") -> Row:
    return Row("cpu", name, (PYTHON, "-c", code), 1, reader)


def test_a_run_goes_on_and_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(performance_run, "_MACHINE", (PYTHON, "-c", "print('{\"cores\": 2}')"))
    out, said, written = tmp_path / "out.json", [], []

    def say(words: str) -> None:
        said.append(words)
        written.append(len(json.loads(out.read_text())["rows"]) if out.exists() else 0)

    rows = [
        script("good", "print('{\"ms\": 1.23456}')"),
        script("bad", "raise SystemExit('no memory left')"),
        script("no-json", "print('hello')"),
    ]
    found = performance_run.run(rows, ASKED, out, None, "abc1234", say)
    assert found == json.loads(out.read_text())
    good, bad, other = found["rows"]
    assert good["figures"] == [{"ms": 1.235}]
    assert "failed" not in good
    assert bad["failed"] == "ended with status 1 | no memory left"
    assert "no JSON was printed" in other["failed"]
    assert written == [0, 1, 2, 3], "after every row"
    assert found["machine"] == {"cores": 2, "threads": 16}
    late = performance_run.run(rows[:1], ASKED, out, 0.0, None, say)
    assert late["rows"][0]["failed"] == "there was no time left"


def test_a_command_that_is_stopped_leaves_its_lines_and_no_process(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    beat = (
        f"import time\nwhile True:\n    open({str(alive)!r}, 'a').write('.')\n    time.sleep(0.02)"
    )
    code = (
        "import subprocess, sys, time; print('{\"ms\": 1}', flush=True);"
        f"subprocess.Popen([sys.executable, '-c', {beat!r}]); time.sleep(60)"
    )
    ended = performance_process.run_command((PYTHON, "-c", code), 3.0)
    assert (ended.problem or "").startswith("stopped after 3 s")
    assert figures("lines", ended.printed) == [{"ms": 1}]
    last = alive.stat().st_size
    assert last > 0
    sleep(0.2)
    assert alive.stat().st_size == last


def test_what_cannot_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in (
        (["run", "--out", str(tmp_path / "no" / "r.json")], "no file can be written"),
        (["run", "--out", str(tmp_path / "r.json"), "--kt", "/nowhere"], "--kt /nowhere: there is"),
        (["write", str(tmp_path / "r.json")], "cannot be read"),
    ):
        monkeypatch.setattr(sys, "argv", ["performance", *words])
        assert performance.main() == 2
        assert said in capsys.readouterr().err
    (tmp_path / "r.json").write_text("[]")
    with pytest.raises(ImpossibleSetting, match="holds no results"):
        performance_file.read(tmp_path / "r.json")
    tried = run_of({"section": "cpu", "name": "bf16", "command": "--synthetic /tmp/"
                    f"{performance_file.SMALL_FOLDER}x/qwen.json"})  # fmt: skip
    (tmp_path / "r.json").write_text(json.dumps(tried))
    with pytest.raises(ImpossibleSetting, match="tried with --small"):
        performance_file.read(tmp_path / "r.json")


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ({"rows": []}, "has no 'date'"),
        (run_of(isa="amx"), "'machine' is not described"),
        (run_of(isa=[1]), "'machine' is not described"),
        ({"date": "today", "machine": [1], "rows": []}, "'machine' is not described"),
        (run_of([]), "row 1 is not an object"),  # type: ignore[arg-type]
        (run_of(made("cpu", "bf16"), {"section": "cpu"}), "row 2 has no 'name'"),
        (run_of(made("cpu", "bf16") | {"figures": {}}), "'figures' of row 1 is not a list"),
        (run_of(made("gpu", "bf16")), "section 'gpu', which is none of cpu, cpu-two,"),
        (run_of(made("cpu", "bf16", 3)), "a figure of row 1 is not an object"),
        (
            run_of(made("cpu", "bf16", {"test": "tg48", "name": "moesaic"})),
            "a figure of row cpu:bf16 has no 'tokens_per_s'",
        ),
        (
            run_of(made("cpu", "bf16", of_test("tg48", "moesaic", "fast"))),  # type: ignore[arg-type]
            "the figures of row cpu:bf16 cannot be used",
        ),
        (
            run_of(
                made("cuda", "qwen-int4", on_gpu("tg64", "moesaic", 0.25, 1.0)),
                made("cuda", "layerwise-int4", on_gpu("tg64", "ktransformers", 0.25, 0.0)),
            ),
            "the rows of section cuda together cannot be used",
        ),
    ],
)  # fmt: skip
def test_results_that_are_damaged_are_said_by_file_and_row(
    tmp_path: Path, results: Any, said: str
) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(results))
    with pytest.raises(ImpossibleSetting, match=r"damaged\.json: ") as found:
        performance_file.read(path)
    assert said in str(found.value)


def test_small_models_can_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "r.json")
    monkeypatch.setattr(sys, "argv", ["p", "run", "--out", out, "--small", "--list"])
    assert performance.main() == 0
    listed = capsys.readouterr().out
    assert "qwen.json" in listed
    assert "--accelerator cuda" not in listed
