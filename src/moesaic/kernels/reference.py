"""The reference kernel, in plain torch: other kernels are compared with it.

Precision: each matrix product is taken in the weights' dtype, which torch accumulates in fp32
and rounds once; activation and product with `up` are done in fp32 and rounded once; the sum over
experts is kept in fp32. In fp32 nothing is rounded in between.

A block holds gate and up as one matrix [2 * intermediate, hidden], then down [hidden,
intermediate], row after row; biases, where the shape has them, at its end (`biases.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from moesaic.core.numa import Nodes
from moesaic.kernels.base import ExpertWeights
from moesaic.kernels.biases import StoredBiases, biases_in, store_biases
from moesaic.kernels.dtypes import torch_dtype
from moesaic.kernels.products import linear
from moesaic.kernels.torch_executor import TorchExecutor
from moesaic.model_info.expert_block import ROWS, block_bytes
from moesaic.model_info.expert_shape import ExpertShape

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
}


class ReferenceKernel:
    layout = ROWS

    def __init__(self, shape: ExpertShape, dtype: str) -> None:
        assert shape.activation in ACTIVATIONS, f"no activation {shape.activation!r}"
        self.shape = shape
        self.dtype = dtype
        self._stored = torch_dtype(dtype)
        self._used_bytes = shape.values * self._stored.itemsize
        self.block_bytes = block_bytes(dtype, shape.hidden, shape.intermediate, shape.bias)

    def executor(self, threads: int, nodes: Nodes = (), strict: bool = True) -> TorchExecutor:
        return TorchExecutor(self)

    def workspace(self, tokens: int) -> int:
        """Gathered rows, gate and up, their product, the result: at most fp32 each."""
        return 4 * tokens * (3 * self.shape.hidden + 4 * self.shape.intermediate)

    def pack(self, weights: ExpertWeights, block: torch.Tensor) -> None:
        pack_matrices(self.shape, weights, self.values(block))
        store_biases(self.shape, weights.biases, block)

    def compute(
        self,
        block: torch.Tensor,
        hidden: torch.Tensor,
        tokens: torch.Tensor | None,
        weights: torch.Tensor | float,
        out: torch.Tensor,
    ) -> None:
        rows = hidden if tokens is None else hidden[tokens]
        biases = biases_in(self.shape, block)
        part = feed_forward(self.shape, self.values(block), rows, biases)
        add_part(part, tokens, weights, out)

    def values(self, block: torch.Tensor) -> torch.Tensor:
        """The block's weights, on the same memory."""
        return block[: self._used_bytes].view(self._stored)


def add_part(
    part: torch.Tensor,
    tokens: torch.Tensor | None,
    weights: torch.Tensor | float,
    out: torch.Tensor,
) -> None:
    """`out[tokens] += weights * part`, in fp32."""
    if tokens is None and isinstance(weights, float):
        out.add_(part, alpha=weights)
    elif tokens is None:
        out.addcmul_(part.float(), weights)
    else:
        out.index_add_(0, tokens, part.float() * weights)


def pack_matrices(shape: ExpertShape, weights: ExpertWeights, values: torch.Tensor) -> None:
    gate_up, down = block_views(shape, values)
    gate_up[: shape.intermediate].copy_(weights.gate)
    gate_up[shape.intermediate :].copy_(weights.up)
    down.copy_(weights.down)


def block_views(shape: ExpertShape, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate and up together, and down, as matrices on the same memory."""
    assert values.shape == (shape.values,), f"a block is flat and {shape.values} long"
    split = 2 * shape.intermediate * shape.hidden
    gate_up = values[:split].view(2 * shape.intermediate, shape.hidden)
    return gate_up, values[split:].view(shape.hidden, shape.intermediate)


def feed_forward(
    shape: ExpertShape, values: torch.Tensor, x: torch.Tensor, biases: StoredBiases | None = None
) -> torch.Tensor:
    """down(activation(gate(x)) * up(x)) for every row of x, in the weights' dtype; in fp32 where
    there are biases, which are added to rounded products."""
    gate_up, down = block_views(shape, values)
    wide = linear(x, gate_up).float()
    if biases is None:
        return linear(gated(shape, wide).to(x.dtype), down)
    inner = gated(shape, wide + biases.gate_up)
    return linear(inner.to(x.dtype), down).float() + biases.down


def gated(shape: ExpertShape, gate_up: torch.Tensor) -> torch.Tensor:
    """What down is applied to, from gate and up [rows, 2 * intermediate] in fp32."""
    gate, up = gate_up.chunk(2, dim=-1)
    if shape.clamped is None:
        return ACTIVATIONS[shape.activation](gate) * up
    alpha, limit = shape.clamped.alpha, shape.clamped.limit
    broken = 0.0 * (gate + up)  # 0, or NaN where clamping would hide that one is infinite
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * gate * torch.sigmoid(alpha * gate) + broken
