"""Biases of an expert: in fp32 at the end of its packed block, whatever its matrices are in."""

from __future__ import annotations

from typing import NamedTuple

import torch

from moesaic.kernels.base import ExpertBiases
from moesaic.model_info.expert_block import BIAS_BYTES, aligned
from moesaic.model_info.expert_shape import ExpertShape


class StoredBiases(NamedTuple):
    gate_up: torch.Tensor  # fp32 [2 * intermediate]
    down: torch.Tensor  # fp32 [hidden]


def biases_in(shape: ExpertShape, block: torch.Tensor) -> StoredBiases | None:
    """Views of the biases in the block's memory; None where the shape has none."""
    if not shape.bias:
        return None
    wide = 2 * shape.intermediate
    size = BIAS_BYTES * (wide + shape.hidden)
    start = len(block) - aligned(size)
    values = block[start : start + size].view(torch.float32)
    return StoredBiases(values[:wide], values[wide:])


def store_biases(shape: ExpertShape, biases: ExpertBiases | None, block: torch.Tensor) -> None:
    stored = biases_in(shape, block)
    if stored is None:
        assert biases is None, "an expert with biases for a shape without"
        return
    assert biases is not None, "the shape says the expert has biases"
    gate, up = stored.gate_up.chunk(2)
    gate.copy_(biases.gate)
    up.copy_(biases.up)
    stored.down.copy_(biases.down)
