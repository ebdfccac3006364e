"""Reads a config.json into an `Architecture`, or says why the model cannot be run."""

from __future__ import annotations

import os
from collections.abc import Iterable

from moesaic.core.errors import BadCheckpoint
from moesaic.core.parsing import short
from moesaic.kernels.base import ClampedSwiglu
from moesaic.kernels.reference import ACTIVATIONS
from moesaic.model_info.config_reader import ConfigReader
from moesaic.model_info.dense_models import refuse_dense
from moesaic.model_info.model_config import model_spec, open_config
from moesaic.model_info.model_families import FAMILIES
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.quantization.read import read_quantization
from moesaic.models.architecture import Architecture, AttentionRule, Multipliers, RouterRule
from moesaic.models.config_fields import refuse_not_understood
from moesaic.models.families import NOT_IMPLEMENTED, RUNNABLE, RunnableFamily
from moesaic.models.rope_config import read_rope, score_magnitude

_SWIGLU_ALPHA, _SWIGLU_LIMIT = 1.702, 7.0  # of gpt-oss, where a file does not say


def read_architecture(path: str | os.PathLike[str]) -> Architecture:
    """The decoder that `path` describes: a config.json, or a directory that contains one."""
    config = open_config(path)
    _refuse_unknown(config)
    architecture = architecture_of(config, model_spec(config))
    refuse_not_understood(config, RUNNABLE[architecture.spec.family])
    return architecture


def architecture_of(config: ConfigReader, spec: ModelSpec) -> Architecture:
    """The shapes of `spec`, the rules of `config`."""
    _refuse_what_cannot_run(config, spec)
    family = RUNNABLE[spec.family]
    rope = read_rope(config, spec, family)
    return Architecture(
        spec=spec,
        norm_eps=config.number("rms_norm_eps"),
        activation=config.choice("hidden_act", tuple(ACTIVATIONS)),
        rope=rope,
        attention=_attention(config, spec, family),
        router=_router(config, spec, family),
        multipliers=_multipliers(config) if family.multipliers else Multipliers(),
        clamped=_clamped_swiglu(config) if family.clamped_swiglu else None,
        shared_gate=family.shared_gate and spec.shared_intermediate > 0,
        unused_layers=_unused_layers(config, family),
        centred_norms=family.centred_norms,
    )


def _refuse_unknown(config: ConfigReader) -> None:
    """Before the simulator's reader does, which may know architectures only it can use."""
    model_type = config.value("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        refuse_dense(config)
        what = f"unsupported architecture {short(model_type)}"
        if isinstance(model_type, str) and model_type in NOT_IMPLEMENTED:
            what = f"{what} ({NOT_IMPLEMENTED[model_type]} is not implemented)"
        config.fail("model_type", f"{what}; can be run: {_listed(RUNNABLE)}")


def _listed(families: Iterable[str]) -> str:
    return ", ".join(sorted(families))


def _refuse_what_cannot_run(config: ConfigReader, spec: ModelSpec) -> None:
    if spec.family not in RUNNABLE:
        known = _listed(RUNNABLE)
        what = f"architecture {spec.family!r} can be simulated but not run; can be run: {known}"
        raise BadCheckpoint(config.path, "model_type", what)
    read_quantization(config)


def _unused_layers(config: ConfigReader, family: RunnableFamily) -> int:
    if not family.predicts_further:
        return 0
    names = ("num_nextn_predict_layers", "num_mtp_layers")
    return max(config.count(name, minimum=0) if config.has(name) else 0 for name in names)


def _attention(config: ConfigReader, spec: ModelSpec, family: RunnableFamily) -> AttentionRule:
    scale = float(spec.head_dim) ** -0.5
    if family.multipliers:
        scale = config.number("attention_multiplier")
    if spec.latent_attention is not None:
        scale *= score_magnitude(config) ** 2
        if spec.num_kv_heads != spec.num_heads:
            what = f"expected {spec.num_heads}, as many as num_attention_heads, with latent"
            config.fail("num_key_value_heads", f"{what} attention; not {spec.num_kv_heads}")
    return AttentionRule(
        scale=scale,
        input_bias=family.input_bias(config),
        output_bias=family.output_bias(config),
        qk_norm=family.qk_norm(config),
        clip=config.number("clip_qkv") if family.clips and config.has("clip_qkv") else None,
    )


def _router(config: ConfigReader, spec: ModelSpec, family: RunnableFamily) -> RouterRule:
    groups, top_groups = _groups(config, spec, family)
    # Softmax over the chosen experts is softmax over all of them, then normalised.
    return RouterRule(
        top_k=spec.top_k,
        scoring="sigmoid" if spec.scoring == "sigmoid" else "softmax",
        normalized=spec.normalized_topk,
        factor=config.number("routed_scaling_factor") if family.scaled else 1.0,
        in_fp32=family.router_in_fp32,
        fp32_weight=family.router_kept_in_fp32,
        round_weights=family.round_weights,
        logit_bias=family.router_bias,
        correction_bias=family.correction_bias,
        groups=groups,
        top_groups=top_groups,
        group_score=family.group_score or "max",
    )


def _multipliers(config: ConfigReader) -> Multipliers:
    names = ("embedding_multiplier", "residual_multiplier", "logits_scaling")
    embedding, residual, logits = (config.number(n) if config.has(n) else 1.0 for n in names)
    if not logits:
        config.fail("logits_scaling", "expected a number above 0, which logits are divided by")
    return Multipliers(embedding, residual, logits)


def _clamped_swiglu(config: ConfigReader) -> ClampedSwiglu:
    """Older files state only the limit."""
    fields = {"swiglu_alpha": _SWIGLU_ALPHA, "swiglu_limit": _SWIGLU_LIMIT}
    alpha, limit = (config.number(f) if config.has(f) else usual for f, usual in fields.items())
    return ClampedSwiglu(alpha, limit)


def _groups(config: ConfigReader, spec: ModelSpec, family: RunnableFamily) -> tuple[int, int]:
    """How many groups the experts form and how many of them a token may use; 1, 1 for none."""
    if family.group_score is None:
        return 1, 1
    method = family.topk_methods[0]
    if config.has("topk_method"):
        method = config.choice("topk_method", family.topk_methods)
    if method == "greedy":
        return 1, 1
    groups, top = config.count("n_group"), config.count("topk_group")
    if spec.num_experts % groups:
        config.fail("n_group", f"expected a divisor of {spec.num_experts} (experts), not {groups}")
    if family.group_score == "best-two" and spec.num_experts // groups < 2:
        config.fail("n_group", f"expected groups of two or more experts, not {groups} groups")
    if top > groups:
        config.fail("topk_group", f"expected at most {groups} (groups), not {top}")
    return groups, top
