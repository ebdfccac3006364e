"""Reads a config.json into an `Architecture`, or says why the model cannot be run."""

from __future__ import annotations

import os
from collections.abc import Iterable

from moesaic.core.errors import BadCheckpoint
from moesaic.kernels.reference import ACTIVATIONS
from moesaic.model_info.config_reader import ConfigReader
from moesaic.model_info.model_config import model_spec, open_config
from moesaic.model_info.model_families import FAMILIES
from moesaic.model_info.model_spec import ModelSpec
from moesaic.models.architecture import Architecture, AttentionRule, Rope, RouterRule
from moesaic.models.families import RUNNABLE, RunnableFamily
from moesaic.models.rope_config import read_rope, score_magnitude


def read_architecture(path: str | os.PathLike[str]) -> Architecture:
    """The decoder that `path` describes: a config.json, or a directory that contains one."""
    config = open_config(path)
    _refuse_unknown(config)
    return architecture_of(config, model_spec(config))


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
        attention=_attention(config, spec, family, rope),
        router=_router(config, spec, family),
        shared_gate=family.shared_gate and spec.shared_intermediate > 0,
    )


def _refuse_unknown(config: ConfigReader) -> None:
    """Before the simulator's reader does, which would name architectures only it can use."""
    model_type = config.fields.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        known, others = _listed(RUNNABLE), _listed(FAMILIES.keys() - RUNNABLE.keys())
        config.fail(
            "model_type",
            f"unsupported architecture {model_type!r}; can be run: {known}; can be simulated but "
            f"not run: {others}",
        )


def _listed(families: Iterable[str]) -> str:
    return ", ".join(sorted(families))


def _refuse_what_cannot_run(config: ConfigReader, spec: ModelSpec) -> None:
    if spec.family not in RUNNABLE:
        known = _listed(RUNNABLE)
        what = f"architecture {spec.family!r} can be simulated but not run; can be run: {known}"
        raise BadCheckpoint(config.path, "model_type", what)
    quantized = config.table("quantization_config")
    if quantized:
        method = quantized.get("quant_method", "unknown")
        what = f"weights quantized with {method!r} cannot be read; expected bf16, fp16 or fp32"
        raise BadCheckpoint(config.path, "quantization_config", what)
    if _slides(config):
        what = "sliding-window attention is not supported; expected null"
        raise BadCheckpoint(config.path, "sliding_window", what)


def _slides(config: ConfigReader) -> bool:
    """Qwen files carry a window that is switched off."""
    if config.has("use_sliding_window") and not config.flag("use_sliding_window"):
        return False
    return config.has("sliding_window") and config.count("sliding_window", minimum=0) > 0


def _attention(
    config: ConfigReader, spec: ModelSpec, family: RunnableFamily, rope: Rope
) -> AttentionRule:
    scale = float(spec.head_dim) ** -0.5
    if spec.latent_attention is not None:
        scale *= score_magnitude(config) ** 2
    return AttentionRule(
        scale=scale,
        input_bias=family.input_bias(config),
        output_bias=family.output_bias(config),
        qk_norm=family.qk_norm(config),
        clip=config.number("clip_qkv") if config.has("clip_qkv") else None,
    )


def _router(config: ConfigReader, spec: ModelSpec, family: RunnableFamily) -> RouterRule:
    groups, top_groups = _groups(config, spec, family)
    assert spec.scoring in ("softmax", "sigmoid"), "a family that scores otherwise is not runnable"
    return RouterRule(
        top_k=spec.top_k,
        scoring="sigmoid" if spec.scoring == "sigmoid" else "softmax",
        normalized=spec.normalized_topk and not family.ignores_normalization,
        factor=config.number("routed_scaling_factor") if family.scaled else 1.0,
        in_fp32=family.router_in_fp32,
        round_weights=family.round_weights,
        correction_bias=family.correction_bias,
        groups=groups,
        top_groups=top_groups,
        group_score=family.group_score or "max",
    )


def _groups(config: ConfigReader, spec: ModelSpec, family: RunnableFamily) -> tuple[int, int]:
    """How many groups the experts form and how many of them a token may use; 1, 1 for none."""
    if family.group_score is None:
        return 1, 1
    if config.has("topk_method"):
        methods = ("greedy", "group_limited_greedy", "noaux_tc")
        if config.choice("topk_method", methods) == "greedy":
            return 1, 1
    groups, top = config.count("n_group"), config.count("topk_group")
    if spec.num_experts % groups:
        config.fail("n_group", f"expected a divisor of {spec.num_experts} (experts), not {groups}")
    if top > groups:
        config.fail("topk_group", f"expected at most {groups} (groups), not {top}")
    return groups, top
