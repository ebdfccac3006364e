"""Makes measuring this machine a matter of seconds: small experts, few of them, a tiny model.

What is measured then says nothing about the machine, but everything that measures runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moesaic.kernels.base import ExpertShape
from moesaic.lab.profile import (
    crossover_times,
    engine_times,
    expert_times,
    memory_times,
)
from moesaic.lab.profile import (
    machine_profile as profile,
)

TINY = {
    "model_type": "olmoe",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": False,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def tiny_config(folder: Path) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(TINY))
    return path


def measure_small_things(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    large = ExpertShape(64, 32)
    monkeypatch.setattr(expert_times, "LARGE", large)
    monkeypatch.setattr(profile, "LARGE", large)
    monkeypatch.setattr(expert_times, "SMALL", ExpertShape(64, 8))
    monkeypatch.setattr(expert_times, "_BLOCKS", 4)
    monkeypatch.setattr(expert_times, "TOKENS", (1, 4))
    monkeypatch.setattr(crossover_times, "LARGE", large)
    monkeypatch.setattr(crossover_times, "TOKENS", (1, 4))
    monkeypatch.setattr(memory_times, "_STREAM_BYTES", 1 << 20)
    monkeypatch.setattr(memory_times, "_COPIES", (1 << 16, 1 << 20))
    monkeypatch.setattr(engine_times, "MODEL", str(tiny_config(folder)))
    monkeypatch.setattr(engine_times, "LAYERS", 3)
