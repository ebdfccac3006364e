"""The architectures that can be run: one row each, with the quirks of the stock implementation
and the names its checkpoints use. Shapes are `core/model_families`'s business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from moesaic.model_info.config_reader import ConfigReader

QkNorm = Literal["none", "head", "projection"]


def _never(_: ConfigReader) -> bool:
    return False


def _attention_bias(config: ConfigReader) -> bool:
    return config.has("attention_bias") and config.flag("attention_bias")


def _qkv_bias(config: ConfigReader) -> bool:
    """Qwen2: always there, until a field was made of it."""
    return config.flag("qkv_bias") if config.has("qkv_bias") else True


def _no_norm(_: ConfigReader) -> QkNorm:
    return "none"


def _head_norm(_: ConfigReader) -> QkNorm:
    return "head"


def _projection_norm(_: ConfigReader) -> QkNorm:
    return "projection"


def _norm_stated(config: ConfigReader) -> QkNorm:
    stated = config.has("use_qk_norm") and config.flag("use_qk_norm")
    return "head" if stated else "none"


@dataclass(frozen=True, slots=True)
class RunnableFamily:
    # names in a checkpoint, inside `model.layers.N.`
    moe_names: tuple[str, ...] = ("mlp",)  # the block of a routed layer, in order of preference
    expert_names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    shared_name: str = "shared_experts"
    # attention
    input_bias: Callable[[ConfigReader], bool] = _attention_bias
    output_bias: Callable[[ConfigReader], bool] = _attention_bias
    qk_norm: Callable[[ConfigReader], QkNorm] = _no_norm
    clips: bool = False  # clip_qkv applies
    window_is_off: bool = False  # sliding_window counts only where use_sliding_window is true
    default_rotary: float = 1.0  # share of a head that turns; below 1, a file may say otherwise
    interleaved_rope: bool = False
    # router
    shared_gate: bool = False
    router_in_fp32: bool = False
    round_weights: bool = False
    correction_bias: bool = False
    scaled: bool = False  # routed_scaling_factor applies
    group_score: Literal["max", "best-two"] | None = None  # None: experts are not in groups
    topk_methods: tuple[str, ...] = ()  # of a family with groups; the first where none is stated
    # checkpoint
    predicts_further: bool = False  # files may have layers after the last, which are not used


RUNNABLE: dict[str, RunnableFamily] = {
    "mixtral": RunnableFamily(
        # the published names, and those of files saved with stacked experts
        moe_names=("block_sparse_moe", "mlp"),
        expert_names=("w1", "w3", "w2"),
        input_bias=_never,
        output_bias=_never,
    ),
    "olmoe": RunnableFamily(qk_norm=_projection_norm, clips=True, round_weights=True),
    "qwen2_moe": RunnableFamily(
        shared_name="shared_expert",
        input_bias=_qkv_bias,
        output_bias=_never,
        window_is_off=True,
        shared_gate=True,
        round_weights=True,
    ),
    "qwen3_moe": RunnableFamily(qk_norm=_head_norm, window_is_off=True, round_weights=True),
    "deepseek_v2": RunnableFamily(
        interleaved_rope=True,
        router_in_fp32=True,
        scaled=True,
        group_score="max",
        topk_methods=("greedy", "group_limited_greedy"),
    ),
    "glm4_moe": RunnableFamily(
        output_bias=_never,
        qk_norm=_norm_stated,
        default_rotary=0.5,
        router_in_fp32=True,
        correction_bias=True,
        scaled=True,
        group_score="best-two",
        topk_methods=("noaux_tc",),
        predicts_further=True,
    ),
}
