"""Does `moesaic bench` measure what it is asked for, say it, and refuse the rest in one line?"""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from command import refused, run, run_json

import stock
from moesaic.lab.bench import bench_configs
from moesaic.machines.real.machine import Machine
from moesaic.models.bundled_model import NAME

TINY: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 97,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
SHORT = ("-p", 8, "-n", 4, "--repetitions", 2, "--threads", 1)
ROW = {
    "test", "tokens_per_s", "ms_per_token", "stdev", "hit_rate", "bytes", "floor_ms", "policies",
    "dtype", "cache_ratio", "overhead_us_per_layer", "network_ms", "experts_ms", "load_s",
    "peak_bytes",
}  # fmt: skip
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "tiny.json"
    path.write_text(json.dumps(TINY))
    return path


def test_rows_say_what_was_measured(config: Path) -> None:
    words = ("bench", "--synthetic", config, "--layers", 2, *SHORT, "--batch", "1,3")
    result = run_json(*words)
    assert [row["test"] for row in result["rows"]] == ["pp8", "tg4", "tg4@3"]
    for row in result["rows"]:
        assert row.keys() >= ROW
        assert row["tokens_per_s"] > 0
        assert row["floor_ms"] > 0
        around = row["overhead_us_per_layer"] + row["router_us"]
        assert row["around_experts_us"] == pytest.approx(around)
        assert (row["dtype"], row["cache_ratio"], row["hit_rate"]) == ("bf16", 0.0, None)
        assert row["policies"] is None, "without an accelerator nothing is decided"
        assert row["system"] == "moesaic"
    assert (result["model"], result["layers"], result["weights"]) == ("tiny", 2, "random")
    assert sorted(result["command"].split()) == sorted(["moesaic", *map(str, words), "--json"])
    assert result["machine"]["cores"] >= 1
    assert result["machine"]["rates"]["cpu"]["read_gb_s"] > 0
    assert result["load"]["peak_over_final"] >= 1.0
    assert "synthetic" in result["routing"]
    assert result["routing_kind"] == "synthetic routing"


@pytest.mark.parametrize(
    ("words", "kind"), [((), "synthetic routing"), (("--trace", "none"), "own routing")]
)
def test_the_table_says_whose_routing_it_is(
    config: Path, words: tuple[str, ...], kind: str
) -> None:
    said = run("bench", "--synthetic", config, "--layers", 1, *SHORT, *words).out
    assert kind in " ".join(said.split())


def test_systems_and_ratios_share_one_model(config: Path, tmp_path: Path) -> None:
    """Also: each of them is drawn, as simulated runs are drawn."""
    picture, trace = tmp_path / "step.svg", tmp_path / "steps.json"
    grid = ("--systems", "hybrimoe,ktransformers", "--cache-ratios", "0.25,0.5")
    files = ("--timeline", picture, "--perfetto", trace)
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        emulated = ("--synthetic", config, *SHORT, "--accelerator", "emulated")
        result = run_json("bench", *emulated, *grid, *files)
    said = [(row["cache_ratio"], row["system"], row["test"]) for row in result["rows"]]
    assert said == [
        (ratio, system, test)
        for ratio in (0.25, 0.5)
        for system in ("hybrimoe", "ktransformers")
        for test in ("pp8", "tg4")
    ]
    schedules = [row["policies"]["schedule"] for row in result["rows"][:4]]
    assert schedules == ["hybrid", "hybrid", "gpu-only", "static-experts"]
    assert all(0 <= row["hit_rate"] <= 1 for row in result["rows"])
    assert result["machine"]["rates"]["link_gb_s"] > 0
    names = {f"{system}-{r}" for system in ("hybrimoe", "ktransformers") for r in ("0.25", "0.5")}
    assert {path.stem for path in tmp_path.glob("*.svg")} == {f"step-{name}" for name in names}
    assert {path.stem for path in tmp_path.glob("*.json")} == {f"steps-{name}" for name in names}
    drawn = (tmp_path / "step-ktransformers-0.5.svg").read_text()
    assert "Measured, synthetic routing: tiny on" in drawn
    for words in ("engine", "routing is handed to the planner", "results are collected and added"):
        assert words in drawn, "what happens where no expert runs"
    assert "50% of the bf16 experts in the accelerator: static-experts + pinned + none" in drawn
    assert (
        "25% of the bf16 experts in the accelerator: hybrid"
        in (tmp_path / "step-hybrimoe-0.25.svg").read_text()
    )
    events = json.loads((tmp_path / "steps-ktransformers-0.5.json").read_text())["traceEvents"]
    check_trace_events(events)


def check_trace_events(events: list[dict[str, Any]]) -> None:
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(names.values()) == ["step", "gpu", "cpu", "pcie", "engine"]
    process = next(e["args"]["name"] for e in events if e["name"] == "process_name")
    assert process.endswith("decode (measured, synthetic routing)")
    work = [e for e in events if e["ph"] == "X"]
    assert all(e["ts"] >= 0 and e["dur"] > 0 and e["tid"] in names for e in work)
    steps = [e for e in work if e["cat"] == "step"]
    assert [e["args"] for e in steps] == [{"step": n, "tokens": 1} for n in range(4)]
    dense = [e["name"] for e in work if e["cat"] == "dense"]
    one = [*(f"attention, layer {layer}" for layer in range(4)), "head"]
    assert dense == 4 * one
    assert sum(e["cat"] == "expert" for e in work) == 4 * 4 * 2


def test_a_checkpoint_is_measured_under_its_own_routers(tmp_path: Path) -> None:
    picture = tmp_path / "step.png"
    folder = stock.saved("qwen2-moe").folder
    streams = run("bench", folder, *SHORT, "--timeline", picture)
    for words in ("pp8", "tg4", "floor", "x that"):
        assert words in streams.out
    assert re.search(
        r"^around a layer's experts: \d+ us \(engine \d+, router \d+\)$", streams.out, re.MULTILINE
    )
    assert "routing: the model's own routers" in streams.err
    assert f"wrote {picture}: tg4, moesaic" in streams.err
    assert picture.read_bytes().startswith(PNG)


def test_without_a_model_the_bundled_one_is_measured() -> None:
    output = run_json("bench", *SHORT)
    assert (output["model"], output["weights"]) == (NAME, "checkpoint")
    assert [row["test"] for row in output["rows"]] == ["pp8", "tg4"]


def test_other_running_programs_are_reported_before_measuring(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (7.0, 0.0, 0.0))
    words = ("bench", "--synthetic", config, *SHORT, "-p", 0)
    output, _, rest = run(*words).err.partition("measuring what this machine reaches")
    assert rest
    assert "load average 7.0" in output
    assert "load average" not in refused(monkeypatch, capsys, *words, "--trace", "bundled")


def test_a_trace_is_replayed(config: Path, tmp_path: Path) -> None:
    trace = tmp_path / "own.moet"
    run("trace", "synthesize", "--model", config, "--tokens", 300, "-o", trace)
    streams = run("bench", "--synthetic", config, *SHORT, "--trace", trace, "-p", 0)
    assert "routing: own.moet: synthetic" in streams.err
    assert "tg4" in streams.out
    assert "pp" not in streams.out.splitlines()[4]


def mistakes(config: Path, folder: Path) -> list[tuple[tuple[object, ...], str]]:
    synthetic = ("--synthetic", config)
    return [
        ((folder, *synthetic), "both a model directory"),
        (("--layers", 2), "--layers 2 cuts a model with random weights"),
        (("How fast is it?",), "`moesaic run -p 'How fast is it?'`"),
        ((*synthetic, "--layers", 5), "5 layers of tiny were asked for; it has 4"),
        ((*synthetic, "--layers", 0), "use 1 to 4"),
        (("--synthetic", "olmo-1b-7b"), "Did you mean 'olmoe-1b-7b'"),
        (("olmoe-1b-7b",), "moesaic bench --synthetic olmoe-1b-7b"),
        ((*synthetic, "--trace", "bundled"), "no trace of tiny is bundled"),
        ((*synthetic, "-p", "0", "-n", "0"), "no test was asked for"),
        ((*synthetic, "-p", "8,x"), "--prompt-tokens is '8,x'; expected whole numbers"),
        ((*synthetic, "-n", "300"), "a test of 300 tokens was asked for; tiny can run at most"),
        ((*synthetic, "--repetitions", 0), "--repetitions is 0"),
        ((*synthetic, "--batch", 0), "--batch is 0"),
        ((*synthetic, "--policies", "fiddler", "--systems", "hybrimoe"), "both --policies and"),
        ((*synthetic, "--systems", "hybrymoe"), "Did you mean 'hybrimoe'"),
        ((*synthetic, "--cache-ratios", "0.5"), "there is no accelerator"),
        ((*synthetic, "--systems", "adapmoe"), "add --accelerator emulated"),
        (
            (*synthetic, "--accelerator", "emulated", "--systems", "moesaic,llama.cpp"),
            "schedule 'static-layers' (llama.cpp) puts whole layers",
        ),
        ((*synthetic, "--in-turns", "--layerwise"), "give one of them"),
        ((*synthetic, "--timeline", "step.txt"), "the name must end in .png"),
        ((*synthetic, "--timeline", "step.png", "-n", 0), "give --generate some tokens"),
    ]


def test_steps_are_driven_layer_by_layer_where_that_is_asked(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str] = []
    monkeypatch.setattr(
        Machine, "use_only_layerwise", lambda machine, because: reasons.append(because)
    )
    words = ("bench", "--synthetic", config, "--accelerator", "emulated", *SHORT, "-p", 0)
    run_json(*words)
    assert reasons == []
    run_json(*words, "--layerwise")
    assert reasons == ["asked for"]


@pytest.mark.parametrize("number", range(21))
def test_a_mistake_is_one_line(
    number: int,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    every = mistakes(config, stock.saved("olmoe").folder)
    assert len(every) == 21
    words, message = every[number]
    assert message in refused(monkeypatch, capsys, "bench", *SHORT, *words)


def test_a_trace_of_another_model_is_refused(
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = tmp_path / "other.moet"
    run("trace", "synthesize", "--model", "olmoe-1b-7b", "--tokens", 300, "-o", trace)
    words = ("bench", "--synthetic", config, *SHORT, "--trace", trace)
    said = refused(monkeypatch, capsys, *words)
    assert "the trace is of olmoe-1b-7b (16 MoE layers, 64 experts" in said


def test_too_little_memory_is_refused_before_loading(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_configs, "memory", lambda: (10**6, 10**5))
    said = refused(monkeypatch, capsys, "bench", "--synthetic", config, *SHORT)
    assert "tiny needs" in said
    assert "of main memory" in said


def test_formats_for_other_programs(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("bench", "--synthetic", config, "--layers", 2, "-p", 8, "-n", 2, "--repetitions", 1)
    rows = list(csv.DictReader(run(*words, "--format", "csv").out.splitlines()))
    assert [row["test"] for row in rows] == ["pp8", "tg2"]
    assert all(float(row["tokens_per_s"]) > 0 and row["gate.name"] == "full" for row in rows)
    assert {row["routing_kind"] for row in rows} == {"synthetic routing"}
    head, ruler, *lines = run(*words, "--format", "md").out.splitlines()
    assert head.startswith("| model | experts | weights | routing | test | system |")
    assert set(ruler) == {"|", "-", " "}
    assert len(lines) == 2
    assert all(line.count("|") == head.count("|") for line in lines)
    assert all("| synthetic routing |" in line for line in lines)
    for wrong, said in (
        (("--format", "cvs"), "Did you mean 'csv'?"),
        (("--format", "csv", "--json"), "both --json and --format csv"),
        (("--format", "md", "--against", "transformers"), "leave out --against"),
    ):
        assert said in refused(monkeypatch, capsys, *words, *wrong)
