"""The arithmetic other kernels are compared with, in plain torch.

Precision: each matrix product is taken in the weights' dtype, which torch accumulates in fp32
and rounds once; activation and product with `up` are done in fp32 and rounded once; the sum over
experts is kept in fp32. In fp32 nothing is rounded in between.

A block holds gate and up as one matrix [2 * intermediate, hidden], then down [hidden,
intermediate], row after row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from moesaic.kernels.base import ExpertShape, ExpertWeights

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
}
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class ReferenceKernel:
    def supports(self, shape: ExpertShape, dtype: torch.dtype) -> bool:
        return shape.activation in ACTIVATIONS and dtype in _DTYPES

    def workspace(self, shape: ExpertShape, tokens: int) -> int:
        """Gathered rows, gate and up, their product, the result: at most fp32 each."""
        return 4 * tokens * (3 * shape.hidden + 4 * shape.intermediate)

    def pack(self, shape: ExpertShape, weights: ExpertWeights, block: torch.Tensor) -> None:
        gate_up, down = block_views(shape, block)
        gate_up[: shape.intermediate].copy_(weights.gate)
        gate_up[shape.intermediate :].copy_(weights.up)
        down.copy_(weights.down)

    def compute(
        self,
        shape: ExpertShape,
        block: torch.Tensor,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        part = feed_forward(shape, block, hidden[tokens]).float()
        out.index_add_(0, tokens, part * weights.float()[:, None])


def block_views(shape: ExpertShape, block: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate and up together, and down, as matrices on the block's own memory."""
    assert block.shape == (shape.values,), f"a block is flat and {shape.values} long"
    split = 2 * shape.intermediate * shape.hidden
    gate_up = block[:split].view(2 * shape.intermediate, shape.hidden)
    return gate_up, block[split:].view(shape.hidden, shape.intermediate)


def feed_forward(shape: ExpertShape, block: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """down(activation(gate(x)) * up(x)) for every row of x, in the block's dtype."""
    gate_up, down = block_views(shape, block)
    gate, up = functional.linear(x, gate_up).float().chunk(2, dim=-1)
    inner = ACTIVATIONS[shape.activation](gate) * up
    return functional.linear(inner.to(x.dtype), down)
