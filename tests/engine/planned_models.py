"""Small architectures whose plans are compared with what is really allocated."""

from __future__ import annotations

from dataclasses import replace

from moesaic.model_info.config_reader import ConfigReader
from moesaic.model_info.linear_attention import LinearAttentionSizes
from moesaic.model_info.model_spec import LatentAttentionSizes, ModelSpec
from moesaic.models.configs.architecture import Architecture
from moesaic.models.configs.network_reader import architecture_of

GROUPED = ModelSpec(
    name="grouped",
    family="qwen3_moe",
    num_layers=2,
    moe_layers=(0, 1),
    hidden_size=256,
    vocab_size=2000,
    num_experts=8,
    top_k=2,
    expert_intermediate=192,
    shared_intermediate=0,
    dense_intermediate=0,
    num_heads=8,
    num_kv_heads=2,
    head_dim=32,
    max_context=4096,
)
LATENT = replace(
    GROUPED,
    name="latent",
    family="deepseek_v2",
    num_layers=3,
    moe_layers=(1, 2),
    shared_intermediate=384,
    dense_intermediate=512,
    num_kv_heads=8,
    head_dim=48,
    latent_attention=LatentAttentionSizes(64, 16, 32, 32, None),
)
WINDOWED = replace(
    GROUPED,
    name="windowed",
    family="gpt_oss",
    num_layers=3,
    moe_layers=(0, 1, 2),
    scoring="softmax-after-topk",
    sliding_window=10,
    window_layers=(0, 2),
    attention_sinks=True,
    expert_bias=True,
)
RECURRENT = replace(
    GROUPED,
    name="recurrent",
    family="qwen3_next",
    num_layers=3,
    moe_layers=(0, 1, 2),
    linear_attention=LinearAttentionSizes(4, 8, 32, 24, 4),
    linear_layers=(0, 2),
    output_gate=True,
)
KINDS = (GROUPED, LATENT, WINDOWED, RECURRENT)
_RULES = {
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "routed_scaling_factor": 1.0,
    "topk_method": "greedy",
}


def architecture(spec: ModelSpec) -> Architecture:
    return architecture_of(ConfigReader(_RULES, spec.name), spec)
