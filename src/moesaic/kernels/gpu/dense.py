"""Products with dense matrices in int8 or int4 on a GPU, in bf16. Few rows are multiplied as the
codes are read; for more, weights are widened to bf16 a piece at a time and PyTorch multiplies.
Every launch can be captured in a CUDA graph."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch.nn import functional

from moesaic.kernels.gpu.driver import Function
from moesaic.kernels.gpu.modules import load_module
from moesaic.kernels.quantize import FORMATS
from moesaic.kernels.quantized_linear import QuantizedWeight
from moesaic.model_info.dense_rows import SCRATCH, piece_rows

FEW_ROWS = 4  # each reads all codes, from the second one on out of the L2 cache
THREADS = 256
WARPS = THREADS // 32
_OUTPUTS = 2 * WARPS  # of a block of `product`
_EIGHT = 8  # inputs that a thread widens


class _Kernels(NamedTuple):
    product: Function
    widen: Function


def prepare(dtype: str) -> None:
    """Compile."""
    assert _kernels(dtype)


@cache
def _kernels(dtype: str) -> _Kernels:
    module = load_module("dense", {"BITS": FORMATS[dtype].bits})
    return _Kernels(*(module.function(name) for name in _Kernels._fields))


def product(weight: QuantizedWeight, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x @ weight.T + bias of rows [tokens, inputs]."""
    if 0 < len(x) <= FEW_ROWS:
        return _read_product(weight, x.contiguous(), bias)
    step = piece_rows(weight.inputs, SCRATCH)
    if weight.outputs <= step:
        return functional.linear(x, widened(weight), bias)
    out = torch.empty(len(x), weight.outputs, dtype=x.dtype, device=x.device)
    for first in range(0, weight.outputs, step):
        end = min(first + step, weight.outputs)
        added = None if bias is None else bias[first:end]
        out[:, first:end] = functional.linear(x, widened(weight.rows(first, end)), added)
    return out


def widened(weight: QuantizedWeight) -> torch.Tensor:
    """In the scratch that all matrices share, until the next one is: use it in this stream."""
    outputs, inputs = weight.outputs, weight.inputs
    out = weight.scratch.on(weight.codes.device)[: outputs * inputs].view(outputs, inputs)
    blocks = -(-outputs * -(-inputs // _EIGHT) // THREADS)
    _kernels(weight.dtype).widen(
        (blocks,), THREADS, weight.codes, weight.scales, out, outputs, inputs
    )  # fmt: skip
    return out


def _read_product(
    weight: QuantizedWeight, x: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    out = torch.empty(len(x), weight.outputs, dtype=x.dtype, device=x.device)
    grid = (-(-weight.outputs // _OUTPUTS), len(x))
    _kernels(weight.dtype).product(
        grid, THREADS, x, weight.codes, weight.scales, 0 if bias is None else bias, out,
        weight.outputs, weight.inputs,
    )  # fmt: skip
    return out
