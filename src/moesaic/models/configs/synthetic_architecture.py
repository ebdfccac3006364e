"""Architectures of known models, whole or with fewer layers, without their files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from moesaic.core.errors import ImpossibleSetting
from moesaic.model_info.config_reader import ConfigReader
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.model_zoo import load_model
from moesaic.models.configs.architecture import Architecture
from moesaic.models.configs.network_reader import architecture_of, read_architecture

# Where only shapes are known: rules that change numbers, not work.
_PLAIN_RULES = {
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "attention_multiplier": 0.1,  # Granite's: none of them 1, which would be less work
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
}


def synthetic_architecture(name_or_path: str, layers: int | None = None) -> Architecture:
    """A known model, or the one a config.json describes; cut to its first `layers` layers."""
    if Path(name_or_path).exists():
        whole = read_architecture(name_or_path)
    else:
        spec = load_model(name_or_path)
        whole = plain_architecture(spec)
    if layers is None:
        return whole
    cut = _cut(whole.spec, layers)
    return replace(whole, spec=cut, network=whole.network.first(layers))


def plain_architecture(spec: ModelSpec) -> Architecture:
    """A model of which only the shapes are known."""
    return architecture_of(ConfigReader(_PLAIN_RULES, spec.name), spec)


def _cut(spec: ModelSpec, layers: int) -> ModelSpec:
    routed = tuple(layer for layer in spec.moe_layers if layer < layers)
    if not routed or layers > spec.num_layers:
        least = spec.moe_layers[0] + 1
        raise ImpossibleSetting(
            f"{layers} layers of {spec.name} were asked for; it has {spec.num_layers}, and the "
            f"first with routed experts is number {least}: use {least} to {spec.num_layers}"
        )
    windowed = tuple(layer for layer in spec.window_layers if layer < layers)
    linear = tuple(layer for layer in spec.linear_layers if layer < layers)
    cut = replace(spec, num_layers=layers, moe_layers=routed)
    return replace(cut, window_layers=windowed, linear_layers=linear)
