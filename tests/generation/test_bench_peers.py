"""Are other programs measured in the same tests with the same memory, and is it said in words when
one cannot be?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.memory_plan import plan_memory
from moesaic.lab.bench import stock_peer
from moesaic.lab.bench.bench_model import BenchModel, random_model
from moesaic.lab.bench.bench_row import BenchConfig
from moesaic.lab.bench.cases import make_cases
from moesaic.lab.bench.compared_systems import COMPARED, compared_systems, speedups
from moesaic.lab.bench.stock_config import SUPPORTED, stock_config
from moesaic.lab.bench.stock_peer import PeerFailed, measure_stock, request, why_not_stock
from moesaic.model_info.model_zoo import known_models, load_model

CASES = make_cases([8], [4, 100], [1, 4])


def config(model: BenchModel, **changes: Any) -> BenchConfig:
    asked: dict[str, Any] = {"accelerator": "cuda", "cache_ratio": 0.25, "max_model_len": 128}
    settings = EngineSettings(**(asked | changes))
    plan = plan_memory(model.spec, settings, 10**13, 10**12)
    return BenchConfig(model.spec, "moesaic", settings, plan)


def test_the_peer_has_the_memory_that_ours_had() -> None:
    model = random_model("qwen3-30b-a3b", 4)
    chosen = config(model)
    asked = request(model, chosen, CASES, 2)
    assert asked["gpu_bytes"] == chosen.plan.accelerator_bytes
    assert asked["tests"] == {
        "pp8": ("prefill", 8),
        "tg4": ("decode", 4),
        "tg100": ("decode", stock_peer.MOST_TOKENS),
    }, "one sequence at a time, and few tokens"
    assert asked["config"]["num_hidden_layers"] == 4


@pytest.mark.parametrize("name", [n for n in known_models() if load_model(n).family in SUPPORTED])
def test_the_stock_class_has_the_shape_that_was_asked_for(name: str) -> None:
    """Its own configuration, read back by our reader, is the same model."""
    import transformers

    from moesaic.model_info.config_reader import ConfigReader
    from moesaic.model_info.model_config import model_spec

    spec = load_model(name)
    fields = stock_config(spec)
    made = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields).to_dict()
    stated = {**made, **{k: v for k, v in fields.items() if k not in made}}
    again = model_spec(ConfigReader(stated, "config.json"))
    for field in (
        "num_layers", "moe_layers", "hidden_size", "num_experts", "top_k", "expert_intermediate",
        "shared_intermediate", "num_heads", "num_kv_heads", "latent_attention",
    ):  # fmt: skip
        assert getattr(again, field) == getattr(spec, field), field


def test_the_child_measures_a_stock_model(tmp_path: Path) -> None:
    """On the CPU, in a process of its own."""
    model = random_model("olmoe-1b-7b", 2)
    fields = stock_config(model.spec) | {
        "hidden_size": 32, "intermediate_size": 16, "vocab_size": 64, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 16,
    }  # fmt: skip
    asked = {
        "folder": None, "config": fields, "dtype": "float32", "threads": 1, "gpu_bytes": None,
        "host_bytes": 10**9, "tests": {"pp8": ("prefill", 8), "tg2": ("decode", 2)},
        "repetitions": 2,
    }  # fmt: skip
    child = subprocess.run(
        stock_peer._CHILD, input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    answer = json.loads(child.stdout.splitlines()[-1])
    assert {name: len(rates) for name, rates in answer["tests"].items()} == {"pp8": 2, "tg2": 2}
    assert all(rate > 0 for rates in answer["tests"].values() for rate in rates)


def test_its_answer_becomes_rows_and_its_failure_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("olmoe-1b-7b", 2)
    said = '{"tests": {"tg4": [2.0, 4.0]}, "layers_on_gpu": 1}'
    monkeypatch.setattr(stock_peer, "_CHILD", (sys.executable, "-c", f"print('noise\\n{said}')"))
    (row,) = measure_stock(model, config(model), CASES, 2)
    assert (row.test, row.tokens_per_s, row.words) == ("tg4", 3.0, "1 of 2 layers on the GPU")
    assert row.stdev == pytest.approx(2**0.5)
    failing = "import sys; sys.exit('CUDA out of memory')"
    monkeypatch.setattr(stock_peer, "_CHILD", (sys.executable, "-c", failing))
    with pytest.raises(PeerFailed, match="status 1: CUDA out of memory"):
        measure_stock(model, config(model), CASES, 2)
    other = r"import sys; sys.stdout.buffer.write(b'no JSON \xff')"
    monkeypatch.setattr(stock_peer, "_CHILD", (sys.executable, "-c", other))
    with pytest.raises(PeerFailed, match="answered 'no JSON"):
        measure_stock(model, config(model), CASES, 2)
    monkeypatch.setattr(stock_peer, "_SECONDS", 0.2)
    monkeypatch.setattr(stock_peer, "_CHILD", (sys.executable, "-c", "import time; time.sleep(9)"))
    with pytest.raises(PeerFailed, match="fewer tokens"):
        measure_stock(model, config(model), CASES, 2)


def test_why_it_cannot_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("olmoe-1b-7b", 2)
    emulated = config(model, accelerator="emulated")
    assert "offloads from a GPU" in (why_not_stock(emulated) or "")
    monkeypatch.setattr(stock_peer, "find_spec", lambda name: None)
    assert "pip install transformers" in (why_not_stock(config(model)) or "")
    monkeypatch.setattr(stock_peer, "find_spec", lambda name: object())
    assert why_not_stock(config(model)) is None
    assert "no experts in int4" in (why_not_stock(config(model, expert_dtype="int4")) or "")


def test_all_strategies_that_a_machine_can_run_are_compared() -> None:
    found = compared_systems(["moesaic"], EngineSettings(accelerator="cuda"))
    assert found.systems == ["moesaic", "ktransformers", "n-cpu-moe", "adapmoe", "fiddler"]
    (left,) = found.left_out
    assert left.startswith("llama.cpp (static-layers): ")
    assert set(found.systems[1:]) | {"llama.cpp"} == set(COMPARED)
    with pytest.raises(ImpossibleSetting, match="add --accelerator"):
        compared_systems(["moesaic"], EngineSettings())


def test_speeds_are_set_against_ones_own() -> None:
    rows = [
        {"test": "tg4", "cache_ratio": 0.25, "system": "moesaic", "tokens_per_s": 30.0},
        {"test": "tg4", "cache_ratio": 0.25, "system": "fiddler", "tokens_per_s": 20.0},
        {"test": "tg4", "cache_ratio": 0.25, "program": "accelerate", "tokens_per_s": 2.0},
        {"test": "tg4", "cache_ratio": 0.5, "system": "fiddler", "tokens_per_s": 25.0},
    ]
    assert list(speedups("moesaic", rows)) == [
        "tg4 at 25%: moesaic is 1.50 x fiddler, 15.00 x accelerate"
    ]


FAKE = """#!{python}
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
open({log!r}, "a").write(json.dumps(given) + "\\n")
print(json.dumps([
    {{"n_prompt": prompt, "n_gen": answer, "avg_ts": 1.0, "n_cpu_moe": int(layers),
      "n_threads": int(threads),
      "samples_ts": [50.0 + int(layers) - 10 * (int(threads) % 2)] * int(given["-r"])}}
    for threads in given["-t"].split(",")
    for layers in given["-ncmoe"].split(",")
    for prompt, answer in ((int(given["-p"]), 0), (0, int(given["-n"])))
]))
"""


def test_llama_bench_runs_with_as_many_layers_experts_on_the_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A quarter of eight layers: experts of the first six on the CPU; all of them: of none."""
    from moesaic.cli.study.bench_against import run_peers

    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    model = random_model(str(tmp_path / "config.json"))
    program = tmp_path / "llama-bench"
    program.write_text(FAKE.format(python=sys.executable, log=str(tmp_path / "calls")))
    program.chmod(0o755)
    cases = make_cases([64], [4])
    configs = [config(model, threads=2), config(model, threads=2, cache_ratio=1.0)]
    rows = run_peers(model, configs, cases, 1, [f"llama.cpp={program}"])
    found = [row for row in rows if row["program"] == "llama.cpp"]
    assert [(row["test"], row["cache_ratio"], row["tokens_per_s"]) for row in found] == [
        ("pp64", 0.25, 56.0), ("tg4", 0.25, 56.0), ("pp64", 1.0, 50.0), ("tg4", 1.0, 50.0),
    ]  # fmt: skip
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert [call["-ncmoe"] for call in calls] == ["6,0"], "all in one process"
    assert {(call["-ngl"], call["-ub"], call["-t"]) for call in calls} == {("99", "64", "1,2")}
    assert all(row["words"].endswith("-t 2") for row in found), "the faster of both counts"
    emulated = [config(model, threads=1, accelerator="emulated")]
    assert run_peers(model, emulated, cases, 1, [f"llama.cpp={program}"]) == []
    assert "there is no GPU in this run" in capsys.readouterr().err
    batches = make_cases([], [4], [2])
    named = [f"llama.cpp={program}"]
    assert run_peers(model, configs, batches, 1, named, stock=False) == []
    said = capsys.readouterr().err
    assert "not compared: llama.cpp: beside a GPU it is measured with one sequence only" in said
    assert "writing random weights" not in said, "they would not be read"


def test_a_peer_that_cannot_take_part_costs_no_measurements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours are made by then."""
    from moesaic.cli.study.bench_against import run_peers

    program = tmp_path / "llama-bench"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    model = random_model("deepseek-v2-lite", 2)
    monkeypatch.setattr(stock_peer, "_CHILD", (sys.executable, "-c", "print('no JSON')"))
    monkeypatch.setattr(stock_peer, "find_spec", lambda name: object())
    assert run_peers(model, [config(model)], CASES, 1, [f"llama.cpp={program}"]) == []
    said = capsys.readouterr().err
    assert run_peers(model, [config(model)], CASES, 1, stock=False) == []
    assert "accelerate" not in capsys.readouterr().err
    assert "not compared: deepseek-v2-lite has 2 layers; llama.cpp takes" in said
    assert "not compared: accelerate" in said


QWEN = {
    "model_type": "qwen3_moe", "vocab_size": 128, "hidden_size": 64, "intermediate_size": 64,
    "moe_intermediate_size": 32, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "max_position_embeddings": 256, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
