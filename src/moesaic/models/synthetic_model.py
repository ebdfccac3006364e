"""Random-weight models of real architectures, whole or with fewer layers: for measuring speed,
which does not depend on what the weights are. What they say means nothing.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from moesaic.core.errors import ImpossibleSetting
from moesaic.kernels.base import ExpertBiases, ExpertShape, ExpertWeights
from moesaic.kernels.dtypes import torch_dtype
from moesaic.model_info.config_reader import ConfigReader
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.model_zoo import load_model
from moesaic.models.architecture import Architecture
from moesaic.models.config import architecture_of, read_architecture
from moesaic.models.decoder import Decoder
from moesaic.models.decoder_builder import DecoderBuilder
from moesaic.models.moe_names import plain_names

if TYPE_CHECKING:
    from moesaic.kernels.native_linear import DenseRunner
    from moesaic.kernels.quantized_linear import DenseQuantizer

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

_DRAWN = (1 << 22) + 17  # values of a tensor that are drawn; more repeat them, rows still differ


def synthetic_architecture(name_or_path: str, layers: int | None = None) -> Architecture:
    """A known model, or the one a config.json describes; cut to its first `layers` layers."""
    if Path(name_or_path).exists():
        whole = read_architecture(name_or_path)
    else:
        spec = load_model(name_or_path)
        whole = architecture_of(ConfigReader(_PLAIN_RULES, name_or_path), spec)
    if layers is None:
        return whole
    return replace(whole, spec=_cut(whole.spec, layers))


def synthetic_decoder(
    architecture: Architecture,
    dtype: str,
    kernel: str = "auto",
    dense: DenseRunner | DenseQuantizer | None = None,
) -> Decoder:
    source = _RandomTensors(torch_dtype(dtype))
    return DecoderBuilder(architecture, source, plain_names, kernel, dense).build()


def random_expert(shape: ExpertShape) -> ExpertWeights:
    source = _RandomTensors(torch.float32)
    wide = (shape.intermediate, shape.hidden)
    names = ("gate", "up", "down")
    gate, up, down = (
        source.tensor(name, *size)
        for name, size in zip(names, (wide, wide, wide[::-1]), strict=True)
    )
    biases = None
    if shape.bias:
        biases = ExpertBiases(*(torch.zeros(len(matrix)) for matrix in (gate, up, down)))
    return ExpertWeights(gate, up, down, biases)


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


class _RandomTensors:
    """A source that makes up what it is asked for; sized so that activations stay near 1."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._seeds = count()

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        generator = torch.Generator().manual_seed(next(self._seeds))
        if len(shape) == 1:
            return torch.ones(shape, dtype=dtype or self._dtype)
        values = torch.empty(shape, dtype=dtype or self._dtype)
        drawn = values.view(-1)[:_DRAWN].normal_(0.0, shape[-1] ** -0.5, generator=generator)
        for part in values.view(-1)[_DRAWN:].split(_DRAWN):
            part.copy_(drawn[: len(part)])
        return values

    def empty(self, values: int) -> torch.Tensor:
        return torch.empty(values, dtype=self._dtype)
