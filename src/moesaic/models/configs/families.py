"""The architectures that can be run: one row each, with the quirks of the stock implementation
and the names its checkpoints use. Shapes are `model_info/model_families`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from moesaic.model_info.config_reader import ConfigReader
from moesaic.models.configs.moe_names import MoeLayout

QkNorm = Literal["none", "head", "projection"]
Stated = Mapping[str, Collection[Any]]
_LATENT = frozenset({"head_dim", "qk_head_dim"})
_SIGMOID: Stated = {"scoring_func": ("sigmoid",)}


def _never(_: ConfigReader) -> bool:
    return False


def _attention_bias(config: ConfigReader) -> bool:
    return config.has("attention_bias") and config.flag("attention_bias")


def _bias_unless_off(config: ConfigReader) -> bool:
    return config.flag("attention_bias") if config.has("attention_bias") else True


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
    layouts: tuple[MoeLayout, ...] = (MoeLayout(),)  # of a routed layer, published files' first
    expert_names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    shared_name: str = "shared_experts"
    columns_interleaved: bool = False  # stacked experts: transposed, gate and up in turn (gpt-oss)
    # attention
    input_bias: Callable[[ConfigReader], bool] = _attention_bias
    output_bias: Callable[[ConfigReader], bool] = _attention_bias
    qk_norm: Callable[[ConfigReader], QkNorm] = _no_norm
    clips: bool = False  # clip_qkv applies
    default_rotary: float = 1.0  # share of a head that turns; below 1, a file may say otherwise
    interleaved_rope: bool = False
    states_interleaving: bool = False  # `rope_interleave` may say otherwise
    # router
    shared_gate: bool = False
    router_in_fp32: bool = False
    router_kept_in_fp32: bool = False  # its matrix too
    round_weights: bool = False
    router_bias: bool = False  # on its product
    correction_bias: bool = False
    scaled: bool = False  # routed_scaling_factor applies
    group_score: Literal["max", "best-two"] | None = None  # None: experts are not in groups
    topk_methods: tuple[str, ...] = ()  # of a family with groups; the first where none is stated
    # experts
    clamped_swiglu: bool = False
    multipliers: bool = False  # Granite's four constants, attention's among them
    # config.json (see `config_fields`)
    derived: frozenset[str] = frozenset()  # fields that follow from others, which are read
    stated: Stated = field(default_factory=dict)  # values that say what the family does anyway
    centred_norms: bool = False
    # checkpoint
    split_inputs: bool = False  # of linear attention: a matrix for each, one after the other
    unused_prefixes: tuple[str, ...] = ()  # tensors that predict further tokens, or see images
    predicts_further: bool = False  # files may have layers after the last, which are not used


_DEEPSEEK_V3 = RunnableFamily(
    interleaved_rope=True,
    states_interleaving=True,
    router_in_fp32=True,
    correction_bias=True,
    scaled=True,
    group_score="best-two",
    topk_methods=("noaux_tc",),
    derived=_LATENT,
    stated=_SIGMOID,
    predicts_further=True,
)

_QWEN3_NEXT = RunnableFamily(
    shared_name="shared_expert",
    qk_norm=_head_norm,
    default_rotary=0.25,
    shared_gate=True,
    round_weights=True,
    centred_norms=True,
    stated={"hidden_act": ("silu",)},
    unused_prefixes=("mtp.",),
)

RUNNABLE: dict[str, RunnableFamily] = {
    "mixtral": RunnableFamily(
        # the published names, and those of files saved with stacked experts
        layouts=(MoeLayout("block_sparse_moe"), MoeLayout()),
        expert_names=("w1", "w3", "w2"),
        input_bias=_never,
        output_bias=_never,
        stated={"norm_topk_prob": (True,)},
    ),
    "granitemoe": RunnableFamily(
        layouts=(
            MoeLayout(
                "block_sparse_moe", "router.layer", ("input_linear.weight", "output_linear.weight")
            ),
            MoeLayout("block_sparse_moe", "router"),
        ),
        round_weights=True,
        multipliers=True,
    ),
    "olmoe": RunnableFamily(qk_norm=_projection_norm, clips=True, round_weights=True),
    "qwen2_moe": RunnableFamily(
        shared_name="shared_expert",
        input_bias=_qkv_bias,
        output_bias=_never,
        shared_gate=True,
        round_weights=True,
    ),
    "qwen3_moe": RunnableFamily(
        qk_norm=_head_norm, round_weights=True, stated={"use_qk_norm": (True,)}
    ),
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_moe_text": replace(
        _QWEN3_NEXT,
        split_inputs=True,
        derived=frozenset({"mtp_num_hidden_layers"}),
        stated={
            "hidden_act": ("silu",),
            "norm_topk_prob": (True,),
            "attn_output_gate": (True,),
            "mamba_ssm_dtype": ("float32",),  # of the states
        },
        unused_prefixes=("mtp.", "model.visual."),
    ),
    "gpt_oss": RunnableFamily(
        layouts=(MoeLayout(router="router"),),
        columns_interleaved=True,
        input_bias=_bias_unless_off,
        output_bias=_bias_unless_off,
        router_bias=True,
        round_weights=True,
        clamped_swiglu=True,
        derived=frozenset({"experts_per_token", "initial_context_length"}),
    ),
    "deepseek_v2": RunnableFamily(
        interleaved_rope=True,
        router_in_fp32=True,
        scaled=True,
        group_score="max",
        topk_methods=("greedy", "group_limited_greedy"),
        derived=_LATENT,
        # The stock implementation ignores the second, DeepSeek's own does not: no right answer
        # for true.
        stated={"scoring_func": ("softmax",), "norm_topk_prob": (False,)},
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "glm4_moe_lite": _DEEPSEEK_V3,
    "dots1": replace(
        _DEEPSEEK_V3,
        qk_norm=_head_norm,
        interleaved_rope=False,
        states_interleaving=False,
        derived=frozenset(),
        stated={"scoring_func": ("sigmoid", "noaux_tc")},
        predicts_further=False,
    ),
    "ernie4_5_moe": RunnableFamily(
        layouts=(MoeLayout(correction="moe_statics.e_score_correction_bias"),),
        input_bias=_never,
        output_bias=_never,
        interleaved_rope=True,
        router_in_fp32=True,
        router_kept_in_fp32=True,
        round_weights=True,
        correction_bias=True,
        derived=frozenset({"moe_capacity"}),  # of training
        unused_prefixes=("model.mtp_",),
        predicts_further=True,
        stated={
            "moe_norm_min": (1e-12,),  # of a sum of probabilities
            "moe_gate": ("topk",),
            "moe_use_aux_free": (True,),
        },
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
        stated=_SIGMOID,
        predicts_further=True,
    ),
}
# Hugging Face model_type -> what a recent architecture has that nothing here computes.
_DELTA_NET = "its linear attention, a gated delta net,"
_SPARSE = "its sparse attention with an indexer"
_LLAMA4 = "its chunked attention, with experts whose input the router scales,"
NOT_IMPLEMENTED = {
    "kimi_linear": _DELTA_NET,
    "deepseek_v32": _SPARSE,
    "deepseek_v4": _SPARSE,
    "glm_moe_dsa": _SPARSE,
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "granitemoehybrid": "its state space layers",
    "nemotron_h": "its state space layers",
}
