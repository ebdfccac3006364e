"""Makes measuring this machine a matter of seconds: small experts, few of them, a tiny model.

What is measured then says nothing about the machine, but everything that measures runs."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from moesaic.lab import fidelity
from moesaic.lab.profile import (
    choose_system,
    cuda_profile,
    cuda_times,
    decode_samples,
    engine_times,
    expert_times,
    memory_times,
)
from moesaic.lab.profile import (
    machine_profile as profile,
)
from moesaic.machines import accelerators
from moesaic.model_info.expert_shape import ExpertShape

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
    monkeypatch.setattr(profile, "CROSSOVER_TOKENS", (1, 4))
    monkeypatch.setattr(memory_times, "stream_bytes", lambda: 1 << 20)
    monkeypatch.setattr(expert_times, "stream_bytes", lambda: 0)
    monkeypatch.setattr(memory_times, "_COPIES", (1 << 16, 1 << 20))
    monkeypatch.setattr(engine_times, "MODEL", str(tiny_config(folder)))
    monkeypatch.setattr(engine_times, "LAYERS", 3)


def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has."""
    row = replace(accelerators.ACCELERATORS["cuda"], problem=lambda: "there is none: buy one")
    monkeypatch.setitem(accelerators.ACCELERATORS, "cuda", row)


def pretend_a_gpu(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The CPU plays the GPU, also where a machine is measured."""
    config, row = str(tiny_config(folder)), accelerators.ACCELERATORS["cuda"]
    monkeypatch.setitem(accelerators.ACCELERATORS, "cuda", replace(row, problem=lambda: None))
    for module in (cuda_profile, fidelity):
        monkeypatch.setattr(module, "accelerator_free", lambda settings: 10**11)
    small = partial(cuda_profile.profile_cuda, device="cpu", scale=256)
    monkeypatch.setattr(cuda_profile, "profile_cuda", small)
    monkeypatch.setattr(fidelity, "RealRuns", partial(fidelity.RealRuns, device="cpu"))
    monkeypatch.setattr(cuda_times, "MODEL", config)
    monkeypatch.setattr(cuda_times, "LAYERS", TINY["num_hidden_layers"])
    monkeypatch.setattr(cuda_times, "TOKENS", (1, 64))
    monkeypatch.setattr(decode_samples, "STEPS", 6)
    monkeypatch.setattr(choose_system, "MODELS", (config,))
    monkeypatch.setattr(choose_system, "RATIOS", (0.5,))
    monkeypatch.setattr(choose_system, "TOKENS", 4)
    monkeypatch.setattr(choose_system, "RECORDED", None)
