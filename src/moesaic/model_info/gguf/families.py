"""What GGUF's architectures are called elsewhere, and what their implementation in llama.cpp does
without a key saying so. A row of the table is an architecture that has routed experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moesaic.model_info.gguf.fields import Fields

_SOFTMAX, _SIGMOID = 1, 2  # as `expert_gating_func` numbers them
_FIRST_BIAS, _FIRST_NORM = "blk.0.attn_q.bias", "blk.0.attn_q_norm.weight"
# Layers and vocabulary of deepseek2 files that score by sigmoid without saying so: GLM-4.7-Flash,
# with the layer that predicts a further token and without.
GLM_FLASH = ((47, 154880), (48, 154880))


@dataclass(frozen=True, slots=True)
class GgufFamily:
    model_type: str  # Hugging Face's
    experts: str  # config field: routed experts per layer
    put_rest: Callable[[Fields], None]
    fixed: Mapping[str, Any] = field(default_factory=dict)  # config fields that no key states
    latent: bool = False
    expert_width_key: str = "expert_feed_forward_length"
    expert_width: str = "moe_intermediate_size"
    partial_rotary: bool = False  # rope.dimension_count may be a part of a head
    yarn_truncates: bool = True  # whether YaRN's bounds are rounded to whole dimensions
    also: tuple[str, ...] = ()  # further model types whose files have this architecture


def _put_dense(fields: Fields) -> None:
    """The width of a dense layer; architectures without one may state it all the same."""
    fields.put_count("intermediate_size", "feed_forward_length")


def _refuse_router_keys(fields: Fields, normalized: bool) -> None:
    """Keys that state what the architecture does anyway, or something it cannot do."""
    if fields.count("expert_gating_func", 0, default=_SOFTMAX) not in (0, _SOFTMAX):
        fields.fail("expert_gating_func", f"expected {_SOFTMAX} (softmax) in this architecture")
    if fields.flag("expert_weights_norm", normalized) is not normalized:
        fields.fail("expert_weights_norm", f"expected {normalized} in this architecture")
    if fields.number("expert_weights_scale", default=1.0) not in (0.0, 1.0):
        fields.fail("expert_weights_scale", "expected 1 in this architecture")
    if fields.count("expert_group_count", 0, default=1) > 1:
        fields.fail("expert_group_count", "expected no groups of experts in this architecture")
    fields.count("expert_group_used_count", 0, default=1)


def _put_mixtral(fields: Fields) -> None:
    _refuse_router_keys(fields, normalized=True)


def _put_olmoe(fields: Fields) -> None:
    _refuse_router_keys(fields, normalized=False)
    fields.put("attention_bias", _FIRST_BIAS in fields.tensors)
    if fields.number("attention.clamp_kqv", default=0.0):
        fields.put_number("clip_qkv", "attention.clamp_kqv")


def _put_qwen2(fields: Fields) -> None:
    _refuse_router_keys(fields, normalized=False)
    _put_dense(fields)
    key = "expert_shared_feed_forward_length"
    fields.put_count("shared_expert_intermediate_size", key, minimum=0)
    fields.put("qkv_bias", _FIRST_BIAS in fields.tensors)


def _put_qwen3(fields: Fields) -> None:
    _refuse_router_keys(fields, normalized=True)
    if fields.has("feed_forward_length"):
        _put_dense(fields)
    fields.put("attention_bias", _FIRST_BIAS in fields.tensors)


def _put_groups(fields: Fields) -> int:
    groups = fields.count("expert_group_count", 0, default=1) or 1
    fields.put("n_group", groups, "expert_group_count")
    used = fields.count("expert_group_used_count", 0, default=1) or 1
    fields.put("topk_group", used, "expert_group_used_count")
    return groups


def _put_scaled_router(fields: Fields) -> None:
    """Shared by DeepSeek and GLM. A factor of 0 or none at all means 1."""
    _put_dense(fields)
    fields.put_count("n_shared_experts", "expert_shared_count", minimum=0)
    dense = fields.count("leading_dense_block_count", 0, default=0)
    fields.put("first_k_dense_replace", dense, "leading_dense_block_count")
    factor = fields.number("expert_weights_scale", default=1.0) or 1.0
    fields.put("routed_scaling_factor", factor, "expert_weights_scale")
    normalized = fields.flag("expert_weights_norm", default=False)
    fields.put("norm_topk_prob", normalized, "expert_weights_norm")


def _put_dots1(fields: Fields) -> None:
    _put_scaled_router(fields)
    _put_groups(fields)
    if fields.count("expert_gating_func", 0, default=_SIGMOID) not in (0, _SIGMOID):
        fields.fail("expert_gating_func", f"expected {_SIGMOID} (sigmoid) in this architecture")
    fields.put("attention_bias", _FIRST_BIAS in fields.tensors)


def _put_glm4(fields: Fields) -> None:
    _put_dots1(fields)
    fields.put("use_qk_norm", _FIRST_NORM in fields.tensors)


def _put_deepseek2(fields: Fields) -> None:
    """DeepSeek-V2; or V3, Kimi-K2 and GLM-4.7-Flash, which differ by how experts are scored."""
    _put_scaled_router(fields)
    groups = _put_groups(fields)
    shape = fields.count("block_count"), fields.tensors["token_embd.weight"].shape[0]
    usual = _SIGMOID if shape in GLM_FLASH else _SOFTMAX
    scoring = fields.count("expert_gating_func", 0, default=usual) or usual
    if scoring not in (_SOFTMAX, _SIGMOID):
        fields.fail("expert_gating_func", f"expected {_SOFTMAX} (softmax) or {_SIGMOID} (sigmoid)")
    if scoring == _SIGMOID:
        fields.put("model_type", "deepseek_v3", "expert_gating_func")
    else:
        fields.put("topk_method", "group_limited_greedy" if groups > 1 else "greedy")


def _put_granite(fields: Fields) -> None:
    """Its four constants. A scale that is not stated, or 0, scales nothing; scores are scaled by
    the head's width then, as everywhere."""
    _refuse_router_keys(fields, normalized=True)
    if not fields.flag("rope.scaling.finetuned", default=True):
        fields.fail("rope.scaling.finetuned", "expected true: a Granite without positions")
    heads, hidden = fields.count("attention.head_count"), fields.count("embedding_length")
    width = fields.count("attention.key_length", default=max(1, hidden // heads))
    constants = {
        "embedding_multiplier": ("embedding_scale", 1.0),
        "residual_multiplier": ("residual_scale", 1.0),
        "attention_multiplier": ("attention.scale", float(width) ** -0.5),
    }
    for name, (key, usual) in constants.items():
        fields.put(name, fields.number(key, default=usual) or usual, key)
    fields.put_number("logits_scaling", "logit_scale")
    fields.put("attention_bias", _FIRST_BIAS in fields.tensors)


def _put_gpt_oss(fields: Fields) -> None:
    """Softmax over the chosen experts, which is 3 where a file says it."""
    if fields.count("expert_gating_func", 0, default=0) not in (0, 3):
        fields.fail("expert_gating_func", "expected 3 (softmax of the chosen) in this architecture")
    fields.count("feed_forward_length", default=1)  # of no layer: all have experts
    fields.put("attention_bias", _FIRST_BIAS in fields.tensors)
    fields.put_count("sliding_window", "attention.sliding_window", minimum=0)


# general.architecture -> family
GGUF_FAMILIES: dict[str, GgufFamily] = {
    "llama": GgufFamily(
        "mixtral",
        "num_local_experts",
        _put_mixtral,
        expert_width_key="feed_forward_length",
        expert_width="intermediate_size",
    ),
    "granitemoe": GgufFamily(
        "granitemoe",
        "num_local_experts",
        _put_granite,
        expert_width_key="feed_forward_length",
        expert_width="intermediate_size",
    ),
    "olmoe": GgufFamily(
        "olmoe",
        "num_experts",
        _put_olmoe,
        {"norm_topk_prob": False},
        expert_width_key="feed_forward_length",
        expert_width="intermediate_size",
    ),
    "qwen2moe": GgufFamily(
        "qwen2_moe", "num_experts", _put_qwen2, {"norm_topk_prob": False, "decoder_sparse_step": 1}
    ),
    "qwen3moe": GgufFamily(
        "qwen3_moe", "num_experts", _put_qwen3, {"norm_topk_prob": True, "decoder_sparse_step": 1}
    ),
    "gpt-oss": GgufFamily(
        "gpt_oss",
        "num_local_experts",
        _put_gpt_oss,
        expert_width="intermediate_size",
        yarn_truncates=False,
    ),
    "deepseek2": GgufFamily(
        "deepseek_v2",
        "n_routed_experts",
        _put_deepseek2,
        latent=True,
        also=("deepseek_v3", "kimi_k2", "glm4_moe_lite"),
    ),
    "dots1": GgufFamily("dots1", "n_routed_experts", _put_dots1),
    "glm4moe": GgufFamily("glm4_moe", "n_routed_experts", _put_glm4, partial_rotary=True),
}
# Of families that run, the architectures whose tensors in GGUF nothing here puts in order yet.
ONLY_SAFETENSORS = {"qwen3next": "qwen3_next", "qwen35moe": "qwen3_5_moe"}
