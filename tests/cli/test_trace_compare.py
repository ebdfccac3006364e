"""Does `moesaic trace compare` put traces side by side, phase by phase?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command import refused, run, run_json

from moesaic.cli.trace import trace_hits
from moesaic.cli.trace.trace_columns import ROWS
from moesaic.workloads.block import DECODE, PREFILL, RoutingBlock
from moesaic.workloads.header import TraceHeader
from moesaic.workloads.stats.sample import Sample
from moesaic.workloads.writer import write_trace

LAYERS, EXPERTS, TOP_K = 3, 16, 2
PROMPT, ANSWER, DOCUMENTS = 12, 36, 6


def write(path: Path, model: str, favourites: int, synthetic: bool = False) -> Path:
    """Answers of every document draw from a few experts of its own; prompts from all."""
    header = TraceHeader(model, LAYERS, EXPERTS, TOP_K, TOP_K, has_weights=True)
    header = replace(header, synthetic=synthetic)
    rng = np.random.default_rng(0)

    def blocks() -> Iterator[RoutingBlock]:
        for number in range(DOCUMENTS):
            length = PROMPT + ANSWER
            scores = rng.random((length, LAYERS, EXPERTS))
            scores[PROMPT:, :, rng.choice(EXPERTS, favourites, replace=False)] += 1
            yield RoutingBlock(
                np.full(length, number, np.uint32),
                np.arange(length, dtype=np.uint32),
                np.where(np.arange(length) < PROMPT, PREFILL, DECODE).astype(np.uint8),
                np.argsort(-scores, axis=-1)[..., :TOP_K].astype(np.uint8),
                np.full((length, LAYERS, TOP_K), 0.5, np.float16),
            )

    write_trace(path, header, blocks())
    return path


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("traces")
    return write(folder / "narrow.moet", "one", 4), write(folder / "wide.moet", "two", 12)


def test_synthetic_traces_are_labelled(tmp_path: Path, traces: tuple[Path, Path]) -> None:
    """Where they lie beside real ones, in tables and in pictures' legends."""
    made = write(tmp_path / "made.moet", "one", 4, synthetic=True)
    found = run_json("trace", "compare", traces[0], made)["traces"]
    assert {c["trace"].endswith("synthetic") for c in found if c["file"] == str(made)} == {True}
    assert not any("synthetic" in c["trace"] for c in found if c["file"] != str(made))


def test_phases_have_columns_of_their_own(traces: tuple[Path, Path]) -> None:
    found = run_json("trace", "compare", *traces)
    assert [c["trace"] for c in found["traces"]] == [
        "one prefill",
        "one decode",
        "two prefill",
        "two decode",
    ]
    prompts, narrow, _, wide = found["traces"]
    assert (prompts["tokens"], narrow["tokens"]) == (DOCUMENTS * PROMPT, DOCUMENTS * ANSWER)
    assert narrow["statistics"]["overlap_1"] > wide["statistics"]["overlap_1"]
    assert narrow["statistics"]["gini_document"] > narrow["statistics"]["gini_apart"]
    assert "gini_document" not in prompts["statistics"]  # no prompt is long enough
    for cache in ("lru", "mrs", "belady"):
        rates = [narrow["hit_rates"][f"{cache}_{size}"] for size in ("12.5", "25", "50", "75")]
        assert rates == sorted(rates)
        assert rates[1] > wide["hit_rates"][f"{cache}_25"]


def test_belady_is_a_bound_and_lru_is_counted_by_hand() -> None:
    ranked = np.array([[[0]], [[1]], [[2]], [[3]], [[0]], [[1]], [[2]], [[0]]], np.uint8)
    found = trace_hits.hit_rates(Sample(ranked, 1, 4, np.array([0, 8]), None))
    assert found["lru_25"] == 0.0
    assert found["lru_75"] == pytest.approx(1 / 8)  # three slots: only the last 0 is still there
    assert found["belady_75"] >= found["lru_75"]
    assert found["lru_12.5"] == 0.0  # half a slot is none


def test_one_phase_as_a_table(traces: tuple[Path, Path]) -> None:
    shown = run("trace", "compare", *traces, "--phase", "decode").out
    assert all(row in shown for row in ROWS)
    assert "prefill" not in shown


def test_traces_of_one_model_are_called_by_their_files(traces: tuple[Path, Path]) -> None:
    twice = (traces[0], write(traces[0].with_name("again.moet"), "one", 8))
    found = run_json("trace", "compare", *twice, "--phase", "decode")
    assert [c["trace"] for c in found["traces"]] == ["narrow decode", "again decode"]
    (traces[0].parent / "other").mkdir()
    alike = write(traces[0].parent / "other" / "narrow.moet", "one", 8)
    found = run_json("trace", "compare", traces[0], alike, "--phase", "decode")
    assert [c["trace"] for c in found["traces"]] == [f"{traces[0]} decode", f"{alike} decode"]


def test_a_trace_without_a_column_is_named(traces: tuple[Path, Path], tmp_path: Path) -> None:
    empty = tmp_path / "empty.moet"
    write_trace(empty, TraceHeader("none", LAYERS, EXPERTS, TOP_K, TOP_K), [])
    streams = run("trace", "compare", empty, traces[0], "--phase", "decode", "--json")
    assert streams.err == f"left out: there are no decode tokens in {empty}\n"
    assert [c["trace"] for c in json.loads(streams.out)["traces"]] == ["one decode"]


def test_the_picture_has_every_trace(traces: tuple[Path, Path], tmp_path: Path) -> None:
    import matplotlib

    path = tmp_path / "routing.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        run("trace", "compare", *traces, "--plot", path)
    drawn = path.read_text()
    assert all(f"{model} {phase}" in drawn for model in ("one", "two") for phase in ("decode",))
    assert "Belady" in drawn


def test_mistakes_are_one_line(
    traces: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace("empty.moet", TraceHeader("none", LAYERS, EXPERTS, TOP_K, TOP_K), [])
    for words, message in (
        (("empty.moet",), "there are no tokens in empty.moet"),
        ((), "Missing argument 'FILES...'"),
        (("absent.moet",), "absent.moet: No such file"),
        ((traces[0], "--phase", "decod"), "Did you mean 'decode'?"),
        ((traces[0], "--plot", "x.gif"), "must end in"),
    ):
        assert message in refused(monkeypatch, capsys, "trace", "compare", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["empty.moet"]
