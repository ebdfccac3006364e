"""Which routing do `simulate` and `compare` replay where none is named, and do they say so?"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import SMALL, refused, run, run_json

from moesaic.cli.shared.simulation_options import MACHINE
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.workload import SYNTHETIC, playable, usual_trace
from moesaic.model_info.model_zoo import load_model
from moesaic.workloads import bundled_traces
from moesaic.workloads.block import DECODE, RoutingBlock
from moesaic.workloads.bundled_traces import BUNDLED, DEFAULT_MODEL, bundled_trace, recorded_trace
from moesaic.workloads.domains import domains_of
from moesaic.workloads.header import TraceHeader
from moesaic.workloads.source import open_trace
from moesaic.workloads.writer import write_trace

OURS = "moesaic-20m"


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose model has left 400 tokens of routing."""
    spec = load_model(OURS)
    shape = (spec.num_moe_layers, spec.num_experts, spec.top_k)
    header = TraceHeader(OURS, *shape, spec.top_k, source="recorded in a test")
    rng = np.random.default_rng(0)
    ranked = rng.random((400, *shape[:2])).argsort(axis=-1)[..., : spec.top_k].astype(np.uint8)
    block = RoutingBlock(
        np.repeat(np.arange(4, dtype=np.uint32), 100),
        np.tile(np.arange(100, dtype=np.uint32), 4),
        np.full(400, DECODE, np.uint8),
        ranked,
    )
    path = tmp_path / "moesaic-20m.moet"
    write_trace(path, header, [block])
    monkeypatch.setattr(bundled_traces, "_FOLDER", tmp_path)
    return path


@pytest.mark.usefixtures("recorded")
def test_a_model_replays_what_it_has_left() -> None:
    words = ("simulate", *SMALL, "--model", OURS)
    streams = run(*words, "--json")
    assert "routing: moesaic-20m.moet: real routing, recorded in a test" in streams.err
    source = {"source": "recorded in a test", "synthetic": False, "origin": "real"}
    assert json.loads(streams.out)["trace"] == source
    assert run_json(*words, "--trace", "synthetic")["trace"]["synthetic"] is True
    (row,) = run_json("compare", *SMALL, "--jobs", 1, "--model", OURS, "--systems", "hybrimoe")
    assert row["trace"]["synthetic"] is False


@pytest.mark.usefixtures("recorded")
def test_other_models_replay_synthetic_routing() -> None:
    assert usual_trace(OURS) == BUNDLED
    assert usual_trace("olmoe-1b-7b") == SYNTHETIC
    assert usual_trace("deepseek-v2-lite") == SYNTHETIC  # its bundled trace is synthetic


def test_a_stripped_package_has_synthetic_routing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundled_traces, "_FOLDER", tmp_path)
    assert recorded_trace(OURS) is None
    assert usual_trace(OURS) == SYNTHETIC


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seed", 3), "--seed 3 is of synthetic routing, and here the routing is that of a"),
        (("--tokens", 4000), "has 400 tokens for decode; this run needs 4258"),
        (("--batch", 64), "or --trace synthetic"),
        (("--batch", 3), "10 decode steps of batch 3, and the trace gives 0"),  # two documents left
        (("--batch", 2, "--tokens", 60), "62 decode steps of batch 2, and the trace gives 44"),
        (("--phase", "prefill", "--tokens", 100), "prompts of 100 tokens, and the trace gives 1"),
    ],
)
def test_what_a_recording_cannot_give_is_refused_with_the_way_out(
    words: tuple[object, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in ("simulate", "compare"):
        said = refused(monkeypatch, capsys, command, *SMALL, "--model", OURS, *words)
        assert message in said


@pytest.mark.usefixtures("recorded")
def test_small_experts_are_remarked_upon_and_large_ones_are_not() -> None:
    assert "an expert of moesaic-20m has 98 KB" in run("simulate", *SMALL, "--model", OURS).err
    assert "note:" not in run("simulate", *SMALL, "--model", "deepseek-v2-lite").err


def test_the_default_stands_in_one_place() -> None:
    assert bundled_trace(DEFAULT_MODEL) is not None
    for command in ("simulate", "compare"):
        assert f"[default: {DEFAULT_MODEL}]" in " ".join(run(command, "--help").out.split())
    assert run_json("simulate", *SMALL)["model"] == DEFAULT_MODEL


def test_the_recorded_trace_is_small_various_and_long_enough() -> None:
    path = recorded_trace(OURS)
    assert path is not None
    assert path.stat().st_size < 1_500_000
    source = open_trace(path)
    assert not source.header.synthetic
    assert len({domain.partition("/")[0] for domain in domains_of(source.header)}) >= 4
    model, machine = load_model(OURS), load_machine(MACHINE)
    assert playable(source, Settings(model, machine))
    assert playable(source, Settings(model, machine, batch=4))
    assert playable(source, Settings(model, machine, phase="prefill"))
