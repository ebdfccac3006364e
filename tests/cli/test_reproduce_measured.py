"""Does `moesaic reproduce hybrimoe --measured` compare what it says, on the same tokens?"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from command import refused, run, run_json

from moesaic.lab.bench.placement_grid import (
    WARMUP,
    MeasuredRouting,
    measured_routing,
)
from moesaic.model_info.model_zoo import load_model
from moesaic.workloads.steps import decode_steps

CONFIG = {
    "model_type": "qwen3_moe", "vocab_size": 128, "hidden_size": 64, "intermediate_size": 64,
    "moe_intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "max_position_embeddings": 256, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
MEASURED = ("reproduce", "hybrimoe", "--measured")
SMALL = (
    "--accelerator", "emulated", "--threads", "2", "--cache-ratios", "0.5", "--profiles", "8,32",
    "--systems", "moesaic,ktransformers", "--rounds", "2", "--tokens", "4",
)  # fmt: skip


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("measured") / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_every_system_runs_under_every_profile_beside_static_placement(config: Path) -> None:
    result = run_json(*MEASURED, *SMALL, "--models", config)
    cells = [(row["profile_tokens"], row["system"]) for row in result["rows"]]
    assert cells == [(8, "moesaic"), (8, "ktransformers"), (32, "moesaic"), (32, "ktransformers")]
    for row in result["rows"]:
        speed = row["tokens_per_s"]
        assert 0 < speed["low"] <= speed["median"] <= speed["high"]
        assert 0 <= row["hit_rate"] <= 1
        assert row["host_gb_s"] > 0
        assert row["routing"].startswith("synthetic")
        assert (row["over_static"] is None) == (row["system"] == "ktransformers")
    assert (result["rounds"], result["tokens"], result["peers"]) == (2, 4, [])
    assert "reproduce hybrimoe --measured" in result["command"]


def test_the_table_names_what_others_are_compared_with(config: Path) -> None:
    streams = run(*MEASURED, *SMALL, "--models", config, "--profiles", "8")
    assert "2 threads, 50% cached, profile of 8 before token 8: moesaic" in streams.err
    printed = streams.out
    assert "moesaic/static" in printed
    assert "ktransformers is static placement" in printed
    assert "Rounds differ most" in printed


@pytest.fixture(scope="module")
def routing() -> MeasuredRouting:
    return measured_routing(load_model("olmoe-1b-7b"), None, first=64, rounds=2, tokens=8)


def test_profiles_of_all_lengths_end_where_measuring_begins(routing: MeasuredRouting) -> None:
    chosen = [step.layer(0).experts[0] for step in islice(decode_steps(routing.source, 1), 64)]
    for profile in (16, 64):
        expected = np.bincount(np.concatenate(chosen[64 - profile :]), minlength=64)
        assert routing.counts(profile, 64)[0].tolist() == expected.tolist()


def test_a_profile_ends_at_the_token_that_measuring_begins_at(routing: MeasuredRouting) -> None:
    steps = list(islice(decode_steps(routing.source, 1), 50))
    chosen = [step.layer(0).experts[0] for step in steps]
    expected = np.bincount(np.concatenate(chosen[40 - 16 : 40]), minlength=64)
    assert routing.counts(16, 40)[0].tolist() == expected.tolist()
    measured = next(routing.window(0, 8, 40))
    assert measured.layer(0).experts.tolist() == steps[40].layer(0).experts.tolist()


def test_several_beginnings_are_measured_on_one_load(config: Path) -> None:
    given = ("--models", config, "--profiles", "8", "--first-token", "8,40", "--rounds", "1")
    result = run_json(*MEASURED, *SMALL, *given)
    cells = [(row["first_token"], row["system"]) for row in result["rows"]]
    assert cells == [(8, "moesaic"), (8, "ktransformers"), (40, "moesaic"), (40, "ktransformers")]


def test_every_round_has_tokens_of_its_own(routing: MeasuredRouting) -> None:
    whole = islice(decode_steps(routing.source, 1, skip_tokens=64, wrap=True), 2 * (WARMUP + 8))
    rounds = [step for number in range(2) for step in routing.window(number, 8, 64)]
    for one, other in zip(rounds, whole, strict=True):
        assert one.layer(3).experts.tolist() == other.layer(3).experts.tolist()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tokens", "0"), "--tokens is 0; it must be at least 1"),
        (("--profiles", "few"), "--profiles is 'few': give whole numbers"),
        (("--first-token", "100"), "--first-token 100 leaves no room for a profile of 8192"),
        (("--only", "fig7"), "--only is of the simulated tables"),
        (("--against", "vllm=x"), "--against is 'vllm=x': give llama.cpp=PATH"),
        (("--traces", "nowhere"), "--traces 'nowhere' must be a folder"),
    ],
)
def test_mistakes_are_refused_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    assert said in refused(monkeypatch, capsys, *MEASURED, "--accelerator", "emulated", *words)


def test_options_of_measuring_mean_nothing_in_the_simulation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(monkeypatch, capsys, "reproduce", "hybrimoe", "--cache-ratios", "0.5")
    assert "--cache-ratios is of --measured: add that, or leave it out" in said


FAKE = """#!{python}
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print(json.dumps([
    {{"n_prompt": 0, "n_gen": int(given["-n"]), "n_cpu_moe": int(layers), "n_threads": int(threads),
      "avg_ts": 1.0, "samples_ts": [10.0 * int(threads)] * int(given["-r"])}}
    for threads in given["-t"].split(",") for layers in given["-ncmoe"].split(",")
]))
"""


def test_llama_bench_is_measured_with_the_same_threads(config: Path, tmp_path: Path) -> None:
    program = tmp_path / "llama-bench"
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(0o755)
    given = ("--models", config, "--profiles", "8", "--against", f"llama.cpp={program}")
    (peer,) = run_json(*MEASURED, *SMALL, *given)["peers"]
    assert (peer["threads"], peer["cache_ratio"], peer["tokens_per_s"]) == (2, 0.5, 20.0)
