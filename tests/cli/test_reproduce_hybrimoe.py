"""Does `moesaic reproduce hybrimoe` print the rows it promises, and do its commands repeat them?"""

from __future__ import annotations

import json
import shlex
import sys
from itertools import islice, product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from command import refused, run, run_json

from moesaic.lab.bench.placement_grid import (
    WARMUP,
    MeasuredRouting,
    measured_routing,
)
from moesaic.model_info.model_zoo import load_model
from moesaic.reproductions.hybrimoe import Reproduction, beliefs, table
from moesaic.reproductions.hybrimoe.paper import CACHE_RATIOS, LENGTHS, MODELS, SYSTEMS
from moesaic.reproductions.hybrimoe.runs import WINDOW, execute
from moesaic.workloads.steps import decode_steps

KEYS = {"id", "claim", "paper", "ours", "unit", "ratio", "conditions", "command"}


def rows_of(only: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = run_json("reproduce", "hybrimoe", "--only", only, "--jobs", 1)
    return rows


def test_a_row_has_the_papers_value_ours_and_a_command_that_gives_ours_again() -> None:
    (row,) = rows_of("table3/decode/baseline@a6000-xeon5220r-implied")
    assert set(row) == KEYS
    assert row["paper"] == 0.21
    assert row["ratio"] == pytest.approx(row["ours"] / 0.21)
    again = json.loads(run(*shlex.split(row["command"])[1:]).out)
    assert again["latency_s"]["mean"] == row["ours"]


def test_a_bar_without_a_number_leaves_the_papers_value_empty() -> None:
    (row,) = rows_of("fig7/deepseek-v2-lite/32/25%/llama.cpp")
    assert row["paper"] is None
    assert row["ratio"] is None
    again = json.loads(run(*shlex.split(row["command"])[1:]).out)
    assert again["latency_s"]["mean"] == row["ours"]


def test_hit_rates_have_the_stated_values_and_belady_is_the_most() -> None:
    rows = {row["id"].rsplit("/", 1)[1]: row for row in rows_of("fig9/mixtral-8x7b/25%")}
    assert (rows["lru"]["paper"], rows["mrs"]["paper"], rows["belady"]["paper"]) == (
        0.302,
        0.362,
        None,
    )
    assert rows["belady"]["ours"] > max(rows["lru"]["ours"], rows["mrs"]["ours"])


def test_the_whole_grid_is_there() -> None:
    names = [wanted.id for wanted in Reproduction()._wanted]
    grid = len(MODELS) * len(CACHE_RATIOS) * len(LENGTHS) * len(SYSTEMS)
    for figure in ("fig7/", "fig8/"):
        assert sum(name.startswith(figure) for name in names) == grid
    assert len(names) == len(set(names))
    assert {"average-prefill@a6000-xeon5220r", "average-decode@a6000-xeon5220r"} <= set(names)
    assert sum(name.startswith("table3/") for name in names) == 2 * (4 + 3 + 5 + 4)


def test_beliefs_are_wrong_about_each_device_in_both_directions() -> None:
    names = {wanted.id for wanted in Reproduction("belief")._wanted}
    expected = product(
        ("cpu", "gpu", "pcie"), ("0.5", "0.8", "1.2", "2"), ("hybrimoe", "moesaic"),
        ("a6000-xeon5220r", "a6000-xeon5220r-implied"),
    )  # fmt: skip
    assert names == {f"belief/{lane}={by}/{system}@{where}" for lane, by, system, where in expected}


def test_profiles_of_both_lengths_come_before_the_same_tokens() -> None:
    wanted = Reproduction("profile=")._wanted
    assert {each.id.split("/")[0] for each in wanted} == {"profile=256", "profile=8192"}
    for each in wanted:
        for run_of in each.runs:
            assert run_of.settings().skipped_tokens == 8192
            assert f"--profile-tokens {run_of.profile} --first-token 8192" in run_of.command()
            assert f"profile={run_of.profile}/" in each.id


def test_a_row_of_a_wrong_belief_compares_with_the_exact_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beliefs, "TOKENS", 8)
    monkeypatch.setattr(beliefs, "ABLATION_MODEL", "deepseek-v2-lite")
    name = "belief/cpu=2/hybrimoe@a6000-xeon5220r-implied"
    (row,) = rows_of(name)
    (wanted,) = Reproduction(name)._wanted
    wrong, exact = (run_json(*shlex.split(run.command())[1:-1]) for run in wanted.runs[:2])
    assert (wrong["belief_error"], exact["belief_error"]) == ({"cpu": 2.0}, {})
    assert wrong["latency_s"] != exact["latency_s"]
    assert row["ours"] == exact["latency_s"]["mean"] / wrong["latency_s"]["mean"]


def test_decode_claims_are_measured_in_many_windows_and_say_how_far_these_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decode = [w for w in Reproduction()._wanted if w.id.startswith(("average-d", "table3/decode"))]
    assert {run.tokens for wanted in decode for run in wanted.runs} == {12 * WINDOW}
    monkeypatch.setattr(table, "SETTLED_STEPS", 2 * WINDOW)
    (row,) = rows_of("average-decode/deepseek-v2-lite@a6000-xeon5220r")
    (wanted,) = Reproduction("average-decode/deepseek-v2-lite@a6000-xeon5220r")._wanted
    assert len(wanted.runs) == 2 * len(CACHE_RATIOS)
    outcomes = {run: execute(run) for run in wanted.runs}
    pairs = list(zip(wanted.runs[::2], wanted.runs[1::2], strict=True))
    windows = [
        fmean(outcomes[b].windows_s[at] / outcomes[a].windows_s[at] for a, b in pairs)
        for at in range(2)
    ]
    found = f"by window of 64 tokens {min(windows):.3g} to {max(windows):.3g} x, standard deviation"
    assert found in row["conditions"]
    assert min(windows) < row["ours"] < max(windows)
    assert (
        "72 GB/s, a datasheet number times an efficiency measured on another" in row["conditions"]
    )


def test_an_unknown_row_says_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "fig7" in refused(monkeypatch, capsys, "reproduce", "hybrimoe", "--only", "fig6")


# Does `moesaic reproduce hybrimoe --measured` compare what it says, on the same tokens?

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
