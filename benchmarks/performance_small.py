"""Tiny models for trying the whole run on a small machine: the families of the real ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.performance_options import SMALL, Sizes

_COMMON: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_experts_per_tok": 2, "max_position_embeddings": 512,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
_MODELS: dict[str, dict[str, Any]] = {
    "qwen": {
        "model_type": "qwen3_moe", "moe_intermediate_size": 32, "num_key_value_heads": 2,
        "head_dim": 32, "num_experts": 8, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "olmoe": {
        "model_type": "olmoe", "intermediate_size": 32, "num_key_value_heads": 4, "num_experts": 8,
        "norm_topk_prob": False, "clip_qkv": None,
    },
    "deepseek": {
        "model_type": "deepseek_v2", "moe_intermediate_size": 32, "num_key_value_heads": 4,
        "n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "kv_lora_rank": 32, "q_lora_rank": None, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32,
        "v_head_dim": 32, "n_group": 1, "topk_group": 1, "topk_method": "greedy",
        "routed_scaling_factor": 1.0, "scoring_func": "softmax", "norm_topk_prob": False,
    },
}  # fmt: skip


def small_models(folder: Path) -> Sizes:
    """Sizes whose models are config.json files in `folder`."""
    paths = {name: folder / f"{name}.json" for name in _MODELS}
    for name, path in paths.items():
        path.write_text(json.dumps(_COMMON | _MODELS[name]), encoding="utf-8")
    qwen, olmoe, deepseek = (str(paths[name]) for name in ("qwen", "olmoe", "deepseek"))
    return replace(SMALL, qwen=qwen, olmoe=olmoe, deepseek=deepseek)
