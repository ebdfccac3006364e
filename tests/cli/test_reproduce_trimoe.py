"""Does `moesaic reproduce trimoe` give the rows it promises, and do its commands repeat them?"""

from __future__ import annotations

import json
import shlex
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import refused, run, run_json

from moesaic.cli.study.reproduction_rows import pivot
from moesaic.reproductions.row import Row
from moesaic.reproductions.trimoe import Reproduction, paper
from moesaic.reproductions.trimoe.real_traces import TRACES

KEYS = {"id", "claim", "paper", "ours", "unit", "ratio", "conditions", "command"}


def rows_of(*words: object) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = run_json("reproduce", "trimoe", "--jobs", 1, *words)
    return rows


def ids(only: str = "") -> list[str]:
    return [wanted.id for wanted in Reproduction(only)._wanted]


@pytest.fixture(scope="module")
def checks() -> list[dict[str, Any]]:
    """Both bodies, with the same costs and routing, where nothing moves."""
    return rows_of("--only", "check/steady")


def test_a_simulated_row_is_given_again_by_its_command(checks: list[dict[str, Any]]) -> None:
    row = next(row for row in checks if row["id"] == "check/steady/512/trimoe/model@own-share")
    assert set(row) == KEYS
    for words in ("simulator on trimoe-paper", "contention own-share", "batch 512"):
        assert words in row["conditions"], row["conditions"]
    again = json.loads(run(*shlex.split(row["command"])[1:], "--jobs", 1, "--json").out)
    assert again == [row]


def test_a_simulated_layer_ends_when_its_plan_says(checks: list[dict[str, Any]]) -> None:
    plans = [row for row in checks if "/plan@" in row["id"]]
    assert len(plans) == 10
    for row in plans:
        assert row["ours"] == pytest.approx(1.0, abs=0.05), row["id"]


def test_both_bodies_agree_where_nothing_moves(checks: list[dict[str, Any]]) -> None:
    """Within 3 % where a system moves nothing but what is in GPU memory."""
    found = {row["id"]: row["ours"] for row in checks if "/model@" in row["id"]}
    for system, rule in product(("enhanced-ktransformers", "monde"), ("own-share", "none")):
        name = f"check/steady/512/{system}/model@{rule}"
        assert found[name] == pytest.approx(1.0, abs=0.03), name


def test_every_figure_is_there_under_every_rule() -> None:
    every = ids()
    assert len(every) == len(set(every))
    for rule in ("own-share", "full", "none"):
        for model, data, batch in product(paper.MODELS, ("chat", "code"), (256, 512, 768)):
            for system in ("enhanced-ktransformers", "monde", "trimoe", "tri-balanced"):
                assert f"fig6/{model}/{data}/{batch}/{system}@{rule}" in every
        assert {f"fig7/{model}/average@{rule}" for model in paper.MODELS} <= set(every)
        stages = ("+cpu", "+refinement", "+relayout")
        assert {f"fig8/chat/{stage}@{rule}" for stage in stages} <= set(every)
        assert {f"fig9/ndp/{n}/trimoe@{rule}" for n in (2, 4, 8, 16, 32)} <= set(every)
        assert {f"fig9/cpu/{f}/trimoe@{rule}" for f in ("0.125", "0.5", "1", "2")} <= set(every)
        assert f"table3/trimoe/ndp/busy@{rule}" in every
        assert {f"sec5.5/batch-{b}/chat/trimoe@{rule}" for b in (128, 64, 32)} <= set(every)
        assert f"sec5.5/migration-overhead/qwen3-235b-a22b@{rule}" in every


def test_rows_have_the_numbers_that_the_paper_states() -> None:
    found = rows_of("--only", "sec5.5/four-experts")
    for row in found:
        assert row["unit"] == "ms"
        assert row["ratio"] == pytest.approx(row["ours"] / 0.63)
        assert "simulated on trimoe-paper" in row["conditions"]
    rows = {row["id"]: row["paper"] for row in found}
    assert rows == {"sec5.5/four-experts/links=1": 0.63, "sec5.5/four-experts/links=2": 0.63}
    (memory,) = rows_of("--only", "sec5.5/predictor-kb")
    assert (memory["paper"], memory["ours"]) == (38.0, pytest.approx(59 * 160 * 4 / 1e3))


def test_one_part_can_be_asked_for() -> None:
    assert all(name.startswith("fig9/cpu/0.125") for name in ids("fig9/cpu/0.125"))
    assert ids("fig3/average/cold") == ["fig3/average/cold"]


def test_an_unknown_row_says_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(monkeypatch, capsys, "reproduce", "trimoe", "--only", "fig4")
    assert "'fig4'" in said
    assert "fig3, fig5, fig6" in said


def test_real_rows_need_traces(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(monkeypatch, capsys, "reproduce", "trimoe", "--only", "real")
    assert "--traces" in said
    assert "they need --traces DIR" in run("reproduce", "trimoe", "--only", "fig5/gpu/1").out


def test_a_folder_without_traces_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = refused(
        monkeypatch,
        capsys,
        "reproduce",
        "trimoe",
        "--traces",
        tmp_path / "nowhere",
        "--only",
        "fig5/gpu/1",
    )
    assert "gpt-oss-20b_decode.npz" in said
    assert "leave it out" in said


def write_trace(path: Path, layers: int, experts: int, top_k: int, tokens: int = 8) -> None:
    rows = np.array([[i % (experts - top_k) for i in range(layers)]] * tokens)
    chosen = rows[..., None] + np.arange(top_k)
    chosen[0, 0] = np.arange(experts - top_k, experts)  # the last expert is seen
    weights = np.full(chosen.shape, 9, dtype=np.uint8)
    starts, domain = np.array([0, tokens]), np.array(["a"])
    np.savez(
        path, experts=chosen.astype(np.uint8), weights_u8=weights, doc_start=starts, domain=domain
    )


def test_the_trace_of_another_model_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_trace(tmp_path / TRACES["gpt-oss-20b"], 24, 32, 4)
    write_trace(tmp_path / TRACES["deepseek-v2-lite"], 26, 64, 8)
    said = refused(
        monkeypatch, capsys, "reproduce", "trimoe", "--traces", tmp_path, "--only", "fig5/gpu/1"
    )
    assert "another model" in said
    assert "top-8" in said
    assert "top-6" in said


def test_a_trace_with_fewer_tokens_than_sequences_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_trace(tmp_path / TRACES["gpt-oss-20b"], 24, 32, 4)
    write_trace(tmp_path / TRACES["deepseek-v2-lite"], 26, 64, 6)
    said = refused(
        monkeypatch, capsys, "reproduce", "trimoe", "--traces", tmp_path, "--jobs", 1,
        "--only", "real/fig3/gpt-oss-20b/64",
    )  # fmt: skip
    assert "8 tokens" in said
    assert "batch of 64" in said


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_figures_are_drawn(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    said = run(
        "reproduce", "trimoe", "--only", "fig5", "--plots", tmp_path, "--plot-format", ending,
        "--jobs", 1,
    ).out  # fmt: skip
    drawn = tmp_path / f"trimoe-fig5.{ending}"
    assert str(drawn) in said.replace("\n", "")
    assert [path.name for path in tmp_path.iterdir()] == [drawn.name]
    assert drawn.read_bytes()[:4] == (b"\x89PNG" if ending == "png" else b"<?xm")


def test_every_figure_can_be_drawn_from_its_rows(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from moesaic.cli.study.reproduce_trimoe import draw
    from moesaic.cli.study.reproduce_trimoe_pictures import FIGURES

    rows = [Row(name, "", None, 1.0 + at % 3, "x", "", "") for at, name in enumerate(ids())]
    assert len(draw(str(tmp_path), "png", rows)) == len(FIGURES) == 8


def test_a_folder_for_figures_must_exist(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = refused(
        monkeypatch,
        capsys,
        "reproduce",
        "trimoe",
        "--plots",
        tmp_path / "none",
        "--only",
        "fig5/gpu/1",
    )
    assert "create it first" in said


def test_rows_become_lines_and_columns() -> None:
    rows = [Row(f"fig9/ndp/2@{rule}", "", None, at, "x", "", "") for at, rule in enumerate("ab")]
    assert pivot(rows, "fig9/", "@") == {"ndp/2": {"a": 0, "b": 1}}
