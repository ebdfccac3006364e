"""A model's shape as the fields of its family's config.json: what the stock implementation builds
random weights from."""

from __future__ import annotations

from typing import Any

from moesaic.core.errors import ImpossibleSetting
from moesaic.model_info.model_families import FAMILIES
from moesaic.model_info.model_spec import ModelSpec

SUPPORTED = ("mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "deepseek_v2", "glm4_moe")


def stock_config(spec: ModelSpec) -> dict[str, Any]:
    """Rules that change numbers but not work are left to the classes' defaults."""
    if spec.family not in SUPPORTED:
        raise ImpossibleSetting(
            f"random weights of {spec.family} models cannot be made for the stock implementation: "
            f"compare one of {', '.join(SUPPORTED)}, or a model directory"
        )
    family = FAMILIES[spec.family]
    fields = {
        "model_type": spec.family,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": spec.max_context or 4096,
        "tie_word_embeddings": spec.tied_embeddings,
        "num_experts_per_tok": spec.top_k,
        "intermediate_size": spec.dense_intermediate or spec.expert_intermediate,
        family.expert_width: spec.expert_intermediate,
        family.experts: spec.num_experts,
    }
    return fields | _of_family(spec) | _latent(spec)


def _of_family(spec: ModelSpec) -> dict[str, Any]:
    dense = [layer for layer in range(spec.num_layers) if layer not in spec.moe_layers]
    shared = spec.shared_intermediate
    if spec.family in ("qwen2_moe", "qwen3_moe"):
        stated = {"shared_expert_intermediate_size": shared} if shared else {}
        return {"decoder_sparse_step": 1, "mlp_only_layers": dense, **stated}
    if spec.family in ("deepseek_v2", "glm4_moe"):
        return {
            "first_k_dense_replace": spec.moe_layers[0],
            "n_shared_experts": shared // spec.expert_intermediate or None,
            "n_group": 1,
            "topk_group": 1,
        }
    return {}


def _latent(spec: ModelSpec) -> dict[str, Any]:
    latent = spec.latent_attention
    if latent is None:
        return {}
    return {
        "kv_lora_rank": latent.kv_lora_rank,
        "q_lora_rank": latent.q_lora_rank,
        "qk_rope_head_dim": latent.qk_rope_head_dim,
        "qk_nope_head_dim": latent.qk_nope_head_dim,
        "v_head_dim": latent.v_head_dim,
        "head_dim": latent.qk_rope_head_dim,
    }
