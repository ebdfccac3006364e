"""Random-weight models of real architectures, whole or with fewer layers: for measuring speed,
which does not depend on what the weights are. What they say means nothing.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import torch

from moesaic.kernels.base import ExpertBiases, ExpertWeights
from moesaic.kernels.dtypes import torch_dtype
from moesaic.model_info.expert_shape import ExpertShape
from moesaic.models.configs.architecture import Architecture
from moesaic.models.configs.moe_names import plain_names
from moesaic.models.decoder import Decoder
from moesaic.models.decoder_builder import DecoderBuilder

if TYPE_CHECKING:
    from moesaic.kernels.native_linear import DenseRunner
    from moesaic.kernels.quantized_linear import DenseQuantizer

_DRAWN = (1 << 22) + 17  # values of a tensor that are drawn; more repeat them, rows still differ


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
