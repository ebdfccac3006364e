"""A tiny random model on the bench, with rates that are invented instead of measured."""

from __future__ import annotations

import atexit
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import torch

from moesaic.engine.engine_settings import EngineSettings
from moesaic.lab.bench.bench_configs import plan_configs
from moesaic.lab.bench.bench_model import BenchModel, Loaded, load_bench_model, random_model
from moesaic.lab.bench.bench_row import BenchRow
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.grid import run_bench
from moesaic.lab.bench.rates import MeasuredRates, Rates
from moesaic.lab.bench.replayed_routing import BenchRouting, choose_routing
from moesaic.lab.bench.step_recorder import StepRecorder
from moesaic.policies.systems import load_system

torch.set_num_threads(1)

TINY: dict[str, Any] = {
    "model_type": "olmoe",
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 97,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "norm_topk_prob": False,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "clip_qkv": None,
    "torch_dtype": "bfloat16",
}
INVENTED = MeasuredRates(Rates(1, 10.0, 0.1))
ACCELERATED = MeasuredRates(Rates(1, 10.0, 0.1), Rates(1, 20.0, 0.2), 4.0)


def write_config(folder: Path, **changes: Any) -> Path:
    path = folder / "tiny.json"
    path.write_text(json.dumps(TINY | changes))
    return path


@cache
def tiny() -> tuple[BenchModel, Loaded]:
    """Loaded once for all tests of a process."""
    folder = Path(mkdtemp(prefix="moesaic-bench-"))
    atexit.register(rmtree, folder, ignore_errors=True)
    model = random_model(str(write_config(folder)))
    return model, load_bench_model(model, "bf16", "bf16")


def settings(system: str = "moesaic", **changes: Any) -> EngineSettings:
    usual: dict[str, Any] = {"threads": 1, "checked": True} | changes
    return EngineSettings(**usual).with_system(load_system(system))


def routing(*cases: Case, trace: str = "synthetic", repetitions: int = 2) -> BenchRouting:
    return choose_routing(trace, tiny()[0].spec, cases, repetitions)


def bench(
    how: dict[str, EngineSettings],
    *cases: Case,
    trace: str = "synthetic",
    count: int = 2,
    recorders: Sequence[StepRecorder] = (),
) -> list[BenchRow]:
    model, loaded = tiny()
    configs = plan_configs(model.spec, list(how.items()), cases)
    return list(
        run_bench(loaded, configs, cases, routing(*cases, trace=trace), count, recorders=recorders)
    )
