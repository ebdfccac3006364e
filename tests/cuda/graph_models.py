"""Every family's rules in a hundredth of its size, for decoding on a real GPU."""

from __future__ import annotations

from dataclasses import replace

from moesaic.model_info.model_spec import LatentAttentionSizes
from moesaic.model_info.network import GroupedAttentionSpec, LinearAttentionSpec
from moesaic.models.configs.architecture import Architecture
from moesaic.models.configs.synthetic_architecture import plain_architecture, synthetic_architecture
from network_changes import with_attention, with_rope, with_router

FAMILIES = (
    "mixtral-8x7b",
    "olmoe-1b-7b",
    "qwen1.5-moe-a2.7b",
    "qwen3-30b-a3b",
    "deepseek-v2-lite",
    "deepseek-v2",
    "deepseek-v3",
    "glm-4.5-air",
)
# The second layer's attention turns slower and has another scale; a grouped one norms no heads.
DIFFERING = ("qwen3-30b-a3b, layers differ", "deepseek-v2-lite, layers differ")
LAYERS = {"deepseek-v3": 4}  # its first three have no routed experts


def shrunk(name: str) -> Architecture:
    if name in DIFFERING:
        return _differing(shrunk(name.removesuffix(", layers differ")))
    whole = synthetic_architecture(name, LAYERS.get(name, 3))
    spec, latent = whole.spec, whole.spec.latent_attention
    small = replace(
        spec, hidden_size=256, expert_intermediate=96, num_experts=16, top_k=4, vocab_size=1000,
        num_heads=8, num_kv_heads=8 if latent else 2, head_dim=64,
        shared_intermediate=64 if spec.shared_intermediate else 0,
        dense_intermediate=128 if spec.dense_intermediate else 0,
        latent_attention=latent and LatentAttentionSizes(
            kv_lora_rank=64, q_lora_rank=latent.q_lora_rank and 48, qk_nope_head_dim=32,
            qk_rope_head_dim=32, v_head_dim=32,
        ),
    )  # fmt: skip
    (rope,) = whole.network.ropes
    turning = 32 if latent else 64 * rope.dim // spec.head_dim
    groups, top = (min(count, 4) for count in (whole.router.groups, whole.router.top_groups))
    grouped = with_router(plain_architecture(small), groups=groups, top_groups=min(top, groups))
    return with_attention(with_rope(grouped, dim=turning), scale=0.125)


def _differing(architecture: Architecture) -> Architecture:
    layers = list(architecture.network.layers)
    attention = layers[1].attention
    assert not isinstance(attention, LinearAttentionSpec), "a turning attention"
    changed = replace(attention, rope=replace(attention.rope, theta=100.0), scale=0.2)
    if isinstance(changed, GroupedAttentionSpec):
        changed = replace(changed, rope=replace(changed.rope, dim=32), qk_norm=None)
    layers[1] = replace(layers[1], attention=changed)
    return replace(architecture, network=replace(architecture.network, layers=tuple(layers)))
