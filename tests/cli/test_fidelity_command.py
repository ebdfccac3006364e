"""Does the comparison of the two bodies run, and is what was recorded of it still true?"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from statistics import median

import pytest
from command import refused, run, run_json
from small_measurements import (
    measure_small_things,
    pretend_a_gpu,
    tiny_config,
    without_a_gpu,
)

from moesaic.hardware.machine_reader import parse_machine

RECORDED = sorted(Path(__file__).parent.glob("recorded_fidelity*.json"))
TOLERANCE = 0.2  # of the measured time: what the project promises


def test_both_bodies_run_the_same_routing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure_small_things(monkeypatch, tmp_path)
    path = tmp_path / "fidelity.json"
    words = ("--synthetic", tiny_config(tmp_path), "--layers", 3, "--tokens", 8, "--threads", 2)
    output = run_json("fidelity", *words, "-o", path)
    assert json.loads(path.read_text()) == output
    assert len(output["rows"]) == 6
    for row in output["rows"]:
        assert row["measured_ms"] > 0
        assert row["error"] == pytest.approx(row["predicted_ms"] / row["measured_ms"] - 1)
        if row["system"] == "ktransformers":  # nothing moves: hits are known beforehand
            assert row["predicted_hits"] == row["measured_hits"]
    parse_machine(output["machine"].encode(), "recorded")
    said = run("fidelity", *words, "--systems", "fiddler", "--cache-ratios", 0.5).out
    assert "synthetic routing" in " ".join(said.split())


@pytest.mark.parametrize("layerwise", [(), ("--layerwise",)])
def test_a_machine_with_a_gpu_is_compared(
    layerwise: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU plays the GPU. Nothing moves under ktransformers: hits are known beforehand."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    measure_small_things(monkeypatch, tmp_path)
    pretend_a_gpu(monkeypatch, tmp_path)
    model = ("--synthetic", tiny_config(tmp_path), "--layers", 3, "--tokens", 8, "--threads", 1)
    words = ("--accelerator", "cuda", "--systems", "ktransformers,moesaic", *layerwise)
    output = run_json("fidelity", *model, *words, "--cache-ratios", "0.5")
    still, moving = output["rows"]
    assert still["predicted_hits"] == still["measured_hits"]
    assert (still["driven"], moving["driven"]) == ("python", "python"), "there is no GPU"
    machine = parse_machine(output["machine"].encode(), "measured")
    assert machine.planner.lookahead_us > 0, "planning is charged"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--accelerator", "cuda"], "'cuda' cannot be used here: there is none"),
        (["--accelerator", "none"], "unknown accelerator 'none'"),
        (["--layerwise"], "leave it out"),
        (["--systems", "vllm"], "unknown system 'vllm'"),
        (["--systems", "adapmoe,llama.cpp"], "moesaic simulate --policies llama.cpp"),
        (["--tokens", "2"], "at least 8"),
        (["--layers", "99"], "it has 16"),
        (["-o", "result.txt"], "must end in .json"),
        (["--synthetic", "mixtral-8x22b", "--layers", "56"], "GB"),
    ],
)
def test_mistakes_are_refused_before_measuring(
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without_a_gpu(monkeypatch)
    assert said in refused(monkeypatch, capsys, "fidelity", *words)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_measurements_are_still_predicted(path: Path) -> None:
    """Made by `moesaic fidelity -o FILE` on the machine whose description is in the file; a
    change of the simulator or of a policy that loses touch with it shows here."""
    from moesaic.lab.fidelity import predict, routing
    from moesaic.models.configs.synthetic_architecture import synthetic_architecture

    recorded = json.loads(path.read_text())
    machine = parse_machine(recorded["machine"].encode(), path)
    spec = synthetic_architecture(recorded["model"], recorded["layers"]).spec
    source = routing(spec, machine, recorded["tokens"])
    for row in recorded["rows"]:
        _, result = predict(
            spec, machine, source, row["system"], row["cache_ratio"], recorded["tokens"]
        )
        predicted = median(result.latencies_s) * 1e3
        assert abs(predicted / row["measured_ms"] - 1) <= TOLERANCE, row


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_six_runs_are_recorded(path: Path) -> None:
    """Three systems at two ratios, none twice."""
    rows = json.loads(path.read_text())["rows"]
    pairs = [(row["system"], row["cache_ratio"]) for row in rows]
    systems, shares = {system for system, _ in pairs}, {ratio for _, ratio in pairs}
    assert (len(systems), len(shares)) == (3, 2)
    assert sorted(pairs) == sorted(product(systems, shares))


def test_something_is_recorded() -> None:
    assert RECORDED
