"""Checkpoints of some hundred megabytes, written on the spot: all zeros, sharded, with separate or
stacked experts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

HIDDEN, INNER, EXPERTS, LAYERS, VOCABULARY = 512, 512, 16, 8, 2048
CONFIG = {
    "model_type": "olmoe",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "norm_topk_prob": False,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "clip_qkv": None,
    "torch_dtype": "bfloat16",
}


def write_checkpoint(folder: Path, stacked: bool, dtype: torch.dtype) -> Path:
    """One file per layer, and one for the rest."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    places: dict[str, str] = {}
    for number, tensors in enumerate((_ends(dtype), *_layers(stacked, dtype))):
        name = f"model-{number:05}-of-{LAYERS + 1:05}.safetensors"
        save_file(tensors, folder / name)
        places |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def _ends(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {
        "model.embed_tokens.weight": torch.zeros(VOCABULARY, HIDDEN, dtype=dtype),
        "lm_head.weight": torch.zeros(VOCABULARY, HIDDEN, dtype=dtype),
        "model.norm.weight": torch.ones(HIDDEN, dtype=dtype),
    }


def _layers(stacked: bool, dtype: torch.dtype) -> Iterator[dict[str, torch.Tensor]]:
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        norms = ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm",
                 "self_attn.k_norm")  # fmt: skip
        tensors = {f"{prefix}.{name}.weight": torch.ones(HIDDEN, dtype=dtype) for name in norms}
        for name in "qkvo":
            weight = torch.zeros(HIDDEN, HIDDEN, dtype=dtype)
            tensors[f"{prefix}.self_attn.{name}_proj.weight"] = weight
        tensors[f"{prefix}.mlp.gate.weight"] = torch.zeros(EXPERTS, HIDDEN, dtype=dtype)
        experts = f"{prefix}.mlp.experts"
        if stacked:
            tensors[f"{experts}.gate_up_proj"] = torch.zeros(
                EXPERTS, 2 * INNER, HIDDEN, dtype=dtype
            )
            tensors[f"{experts}.down_proj"] = torch.zeros(EXPERTS, HIDDEN, INNER, dtype=dtype)
        else:
            for expert in range(EXPERTS):
                for name, shape in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)),
                                    ("down", (HIDDEN, INNER))):  # fmt: skip
                    tensors[f"{experts}.{expert}.{name}_proj.weight"] = torch.zeros(
                        shape, dtype=dtype
                    )
        yield tensors
