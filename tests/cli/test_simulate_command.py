"""Does `moesaic simulate` report what it promises, the same every time?"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from command import SMALL, refused, run, run_json

from moesaic.cli.shared.output import in_time
from moesaic.cli.shared.simulation_options import CACHE_RATIO, MACHINE
from moesaic.cli.study.simulate_recording import RecordedStep, Recording
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.systems import SYSTEMS

LARGE = "deepseek-v2-lite"  # of synthetic routing
SYNTHETIC = ("--trace", "synthetic")
PNG = b"\x89PNG\r\n\x1a\n"


def without_wall(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "wall_s"}


def test_json_has_every_promised_key_with_sensible_values() -> None:
    result = run_json("simulate", *SMALL, "--model", LARGE)
    assert (result["model"], result["machine"], result["phase"]) == (LARGE, MACHINE, "decode")
    assert result["cache_ratio"] == CACHE_RATIO
    assert result["policies"] == {
        "schedule": "best-split",
        "cache": "learned-speed:pool=global",
        "prefetch": "impact",
        "gate": "full",
        "layout": "striped",
        "promote": True,
        "fill": "auto",
        "parameters": {
            "schedule": {},
            "cache": {"lag": None, "followers": False, "pool": "global", "admission": "bypass"},
            "prefetch": {"lookahead": 3, "read_ahead": 4},
            "gate": {},
            "layout": {},
        },
    }
    assert set(result["latency_s"]) == {"mean", "p50", "p99"}
    assert 0 < result["latency_s"]["p50"] <= result["latency_s"]["p99"]
    assert result["tokens_per_s"] == pytest.approx(1 / result["latency_s"]["mean"])
    assert 0 <= result["hit_rate"] <= 1
    assert set(result["utilization"]) == {"gpu", "cpu", "pcie"}
    assert all(0 <= share <= 1.01 for share in result["utilization"].values())
    assert isinstance(result["bytes_moved"], int)
    assert 0 < result["planning_s"] < result["latency_s"]["mean"] * result["steps"]
    assert 0 < result["floor_s"] <= result["latency_s"]["mean"] * result["steps"]
    assert result["steps"] == 8
    assert result["trace"]["synthetic"] is True


@pytest.mark.parametrize("phase", [("decode",), ("prefill", "--prompts", 2)], ids=lambda p: p[0])
def test_the_same_command_gives_the_same_bits(phase: tuple[object, ...]) -> None:
    words = ("simulate", *SMALL, "--phase", *phase, "--check")
    assert without_wall(run_json(*words)) == without_wall(run_json(*words))


def test_the_seed_changes_the_routing() -> None:
    words = ("simulate", *SMALL, *SYNTHETIC)
    first, second = (run_json(*words, "--seed", seed) for seed in (0, 1))
    assert first["latency_s"] != second["latency_s"]


def test_command_is_what_was_asked_for() -> None:
    result = run_json("simulate", *SMALL, "--no-promote", "--cache-ratio", 0.5)
    expected = "moesaic simulate --tokens 8 --warmup 2 --cache-ratio 0.5 --no-promote --json"
    assert result["command"] == expected


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_is_its_policies(name: str) -> None:
    for phase in ("decode", "prefill"):
        words = ("--policies", name, "--phase", phase)
        policies = run_json("simulate", *SMALL, *words)["policies"]
        assert policies == SYSTEMS[name].policies.as_dict(phase)


def test_explicit_policies_override_the_system() -> None:
    words = (
        "--policies",
        "ktransformers",
        "--cache",
        "lru:pool=global",
        "--prefetch",
        "next-layer",
    )
    policies = run_json("simulate", *SMALL, *words)["policies"]
    assert policies["schedule"] == "static-experts"
    assert (policies["cache"], policies["prefetch"]) == ("lru:pool=global", "next-layer")


def test_batches_are_filled_by_synthetic_documents() -> None:
    result = run_json("simulate", *SMALL, *SYNTHETIC, "--batch", 6)
    assert (result["steps"], result["tokens"]) == (8, 48)


def test_summary_says_what_was_measured_and_where_the_routing_is_from() -> None:
    streams = run("simulate", *SMALL, "--model", LARGE, "--trace", "bundled")
    for words in ("time per step", "physical floor", "hit rate", "busy", "predictions", "moved"):
        assert words in streams.out
    assert "synthetic" in streams.out
    assert "synthetic" in streams.err


def test_timeline_is_a_picture(tmp_path: Path) -> None:
    for phase in ("decode", "prefill"):
        picture = tmp_path / f"{phase}.png"
        run("simulate", *SMALL, "--phase", phase, "--timeline", picture)
        content = picture.read_bytes()
        assert content.startswith(PNG)
        width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
        assert 800 <= width <= 4000
        assert 400 <= height <= 3000
        assert len(content) > 20_000
    assert {path.name for path in tmp_path.iterdir()} == {"decode.png", "prefill.png"}


def test_perfetto_trace_follows_the_format(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    result = run_json("simulate", *SMALL, "--model", LARGE, "--perfetto", path)
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(names.values()) == ["cpu", "gpu", "pcie", "planner", "step"]
    assert [e["ph"] for e in events] == sorted(e["ph"] for e in events)  # metadata first
    work = [e for e in events if e["ph"] == "X"]
    assert all({"name", "cat", "pid", "tid", "ts", "dur", "args"} <= set(e) for e in work)
    assert all(value >= 0 for e in work for value in e["args"].values())  # no "none" as -1
    assert all(set(e["args"]) == {"step", "tokens"} for e in work if e["cat"] == "step")
    experts = [e for e in work if e["cat"] in ("expert", "transfer", "prefetch")]
    assert all({"layer", "expert"} < set(e["args"]) for e in experts)
    process = next(e["args"]["name"] for e in events if e["name"] == "process_name")
    assert process.endswith("(simulated, synthetic routing)")
    assert all(e["ts"] >= 0 and e["dur"] > 0 and e["tid"] in names for e in work)
    assert [e["ts"] for e in work] == sorted(e["ts"] for e in work)
    ends = dict.fromkeys(names, 0.0)
    for event in work:
        assert event["ts"] >= ends[event["tid"]] - 1e-6, "a lane overlaps itself"
        ends[event["tid"]] = event["ts"] + event["dur"]
    steps = [e["dur"] for e in work if e["cat"] == "step"]
    assert sum(steps) / len(steps) == pytest.approx(result["latency_s"]["mean"] * 1e6)


def test_perfetto_names_each_kind_of_dense_work(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    run("simulate", *SMALL, "--model", LARGE, "--perfetto", path)
    events = json.loads(path.read_text())["traceEvents"]
    found = Counter(e["name"].split(",")[0] for e in events if e.get("cat") == "dense")
    model = load_model(LARGE)
    assert found == {
        "attention": 8 * model.num_moe_layers,
        "shared experts": 8 * model.num_moe_layers,
        "dense layer": 8 * (model.num_layers - model.num_moe_layers),
        "head": 8,
    }


def test_the_step_drawn_is_the_nearest_to_the_median_of_all() -> None:
    steps = [
        RecordedStep(number, 0, 0) for number in range(3)
    ]  # a long run records its first steps
    latencies = [0.0101, 0.0159, 0.02, 0.0162, 0.0163]
    drawn = Recording(0, steps=steps).typical(latencies)
    assert drawn.number == 1


def test_timeline_says_what_it_shows(tmp_path: Path) -> None:
    path = tmp_path / "step.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        result = run_json("simulate", *SMALL, *SYNTHETIC, "--timeline", path)
    drawn = path.read_text()
    assert f"(mean of all: {in_time(result['latency_s']['mean'])})" in drawn
    assert "Simulated, synthetic routing" in drawn
    assert "planner" in drawn


def test_the_first_run_says_that_it_compiles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from moesaic.policies import compiled

    run("simulate", *SMALL)  # it may be the first
    assert "compiling" not in run("simulate", *SMALL).err
    monkeypatch.setattr(compiled, "_cache_folder", lambda: str(tmp_path))
    assert run("simulate", *SMALL).err.count("compiling the planners, first run only") == 1


def test_a_short_recording_is_played_as_far_as_it_goes(tmp_path: Path) -> None:
    """A run of a model leaves a few hundred tokens; the usual 544 would be refused."""
    trace = tmp_path / "short.moet"
    run("trace", "synthesize", "--model", "olmoe-1b-7b", "--tokens", 120, "-o", trace)
    words = ("--model", "olmoe-1b-7b", "--trace", trace)
    streams = run("simulate", *words, "--json")
    assert "the trace is short" in streams.err
    assert 4 <= json.loads(streams.out)["steps"] < 120


def test_short_recordings_are_compared_over_one_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As far as the shortest run goes; a length that was asked for is kept, and refused in words
    that help."""
    trace = tmp_path / "short.npz"
    experts = np.argsort(np.random.default_rng(0).random((120, 16, 64)), axis=-1)[..., :8]
    np.savez(trace, experts=experts, doc_start=[0, 40, 80, 120])
    words = ("--model", "olmoe-1b-7b", "--trace", trace, "--systems", "fiddler", "--jobs", 1)
    streams = run("compare", *words, "--sweep", "batch=1,2", "--json")
    assert streams.err.count("the trace is short") == 1
    rows = json.loads(streams.out)
    assert len({row["steps"] for row in rows}) == 1
    assert 4 <= rows[0]["steps"] < 60
    for more, said in (
        ("--tokens 128", "Leave out --tokens and --warmup"),
        ("--batch 4 --tokens 8", "A batch replays as many documents side by side, and it has 3"),
        ("--phase prefill --tokens 512", "Ask for fewer --tokens or --prompts"),
    ):
        assert said in refused(monkeypatch, capsys, "compare", *words, *more.split())


# Can machines whose DIMMs compute be simulated, shown, and refused with a reason?

MODEL = ("--model", "deepseek-v2-lite")


@pytest.mark.parametrize("machine", ["trimoe-paper", "h200-emr16-ndp"])
def test_gpu_and_cpu_schedules_run_and_leave_the_units_alone(machine: str) -> None:
    result = run_json("simulate", "--machine", machine, *MODEL, *SMALL, "--check", "--json")
    busy = result["utilization"]
    assert {busy[f"ndp{at}"] for at in range(16)} == {0.0}
    assert busy["cpu"] > 0
    assert busy["pcie"] > 0
    assert result["floor_ratio"] >= 1


def test_a_file_with_other_numbers_is_simulated(tmp_path: Path) -> None:
    """Without sharing, CPU and PCIe have the channels to themselves: never slower."""
    text = run("machines", "trimoe-paper", "--toml").out
    means = []
    for sharing in ("pcie-first", "none"):
        mine = tmp_path / f"{sharing}.toml"
        mine.write_text(text.replace('sharing = "pcie-first"', f'sharing = "{sharing}"'))
        how = ("--machine", mine, *MODEL, *SMALL, "--batch", 16, "--json")
        means.append(run_json("simulate", *how)["latency_s"]["mean"])
    assert means[1] < means[0]


def test_many_lanes_are_one_entry_of_the_summary() -> None:
    shown = " ".join(run("simulate", "--machine", "trimoe-paper", *MODEL, *SMALL).out.split())
    assert "ndp0 to ndp15 0% (0% to 0%)" in shown.replace("│ │ │ ", "")
    assert "dimm-link0-1 to" in shown
    assert "ndp7" not in shown


def test_rules_are_shown_as_text() -> None:
    shown = run("machines", "trimoe-paper").out
    assert "16 DIMMs on 8 channels" in shown
    assert "Contention own-share: a host read occupies a DIMM while" in shown
    assert "256 GFLOP/s and 140.9 GB/s each" in shown
    assert "DIMM-Link per-dimm" in shown


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "count = { value = 16",
            "count = { value = 12",
            "dimms.count: expected a multiple of the 8",
        ),
        (
            '"own-share"',
            '"half"',
            "dimms.contention: expected one of full, own-share, none, not 'half'",
        ),
        ("channel_gb_s = { value = 38.4", "channel_gb_s = { value = -1", "dimms.channel_gb_s"),
        ("memory_gb = { value = 128.0", "memory_gb = { value = 0.5", "has 8 GB of main memory"),
    ],
)
def test_a_machine_that_cannot_exist_is_one_message(
    old: str,
    new: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = run("machines", "trimoe-paper", "--toml").out
    assert old in text
    (tmp_path / "mine.toml").write_text(text.replace(old, new, 1))
    monkeypatch.chdir(tmp_path)
    said = refused(monkeypatch, capsys, "simulate", "--machine", "mine.toml", *MODEL, *SMALL)
    assert message in " ".join(said.split())


def test_weights_that_units_cannot_multiply_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ("--machine", "trimoe-paper", *MODEL, *SMALL, "--expert-dtype", "int4")
    said = refused(monkeypatch, capsys, "simulate", *how)
    assert "cannot multiply int4 weights, only bf16: use --expert-dtype bf16" in said
