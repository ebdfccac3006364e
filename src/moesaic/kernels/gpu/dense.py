"""Products with dense matrices in int8 or int4 on a GPU, in bf16. Few rows are multiplied as the
codes are read, some by the tensor cores; for more, weights are widened to bf16 a piece at a time
and PyTorch multiplies. Every launch can be captured in a CUDA graph."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch.nn import functional

from moesaic.kernels.gpu.driver import Function
from moesaic.kernels.gpu.modules import load_module
from moesaic.kernels.quantize import FORMATS
from moesaic.kernels.quantized_matrix import QuantizedMatrix
from moesaic.model_info.dense_rows import SCRATCH, piece_rows

FEW_ROWS = 2  # each reads all codes, the second one out of the L2 cache
SOME_ROWS = 32
THREADS = 256
WARPS = THREADS // 32
_OUTPUTS = 2 * WARPS  # of a block of `product`
_EIGHT = 8  # inputs that a thread widens
_TILE_ROWS, _TILE_OUTPUTS = 16, 8  # of a product of the tensor cores
_MANY_OUTPUTS = 1 << 14  # from there on blocks compute more of them, and inputs are read less often


class _Kernels(NamedTuple):
    product: Function
    widen: Function


def prepare(dtype: str) -> None:
    """Compile."""
    assert _kernels(dtype)
    for tiles in (_tiles(1), _tiles(_MANY_OUTPUTS)):
        assert _rows_kernel(dtype, tiles)


def _tiles(outputs: int) -> int:
    """The tiles of a block."""
    return 2 if outputs < _MANY_OUTPUTS else 4


@cache
def _rows_kernel(dtype: str, tiles: int) -> Function:
    defines = {"BITS": FORMATS[dtype].bits, "TILES": tiles}
    return load_module("dense_rows", defines).function("rows_product")


@cache
def _kernels(dtype: str) -> _Kernels:
    module = load_module("dense", {"BITS": FORMATS[dtype].bits})
    return _Kernels(*(module.function(name) for name in _Kernels._fields))


def product(weight: QuantizedMatrix, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x @ weight.T + bias of rows [tokens, inputs]."""
    if 0 < len(x) <= FEW_ROWS:
        return _read_product(weight, x.contiguous(), bias)
    if 0 < len(x) <= SOME_ROWS and weight.inputs % _EIGHT == 0:
        return _rows_product(weight, x.contiguous(), bias)
    step = piece_rows(weight.inputs, SCRATCH)
    if weight.outputs <= step:
        return functional.linear(x, widened(weight), bias)
    out = torch.empty(len(x), weight.outputs, dtype=x.dtype, device=x.device)
    for first in range(0, weight.outputs, step):
        end = min(first + step, weight.outputs)
        added = None if bias is None else bias[first:end]
        out[:, first:end] = functional.linear(x, widened(weight.rows(first, end)), added)
    return out


def widened(weight: QuantizedMatrix) -> torch.Tensor:
    """The weight in the scratch that all matrices share, until the next one is widened: use it in
    this stream."""
    outputs, inputs = weight.outputs, weight.inputs
    out = weight.scratch.on(weight.codes.device)[: outputs * inputs].view(outputs, inputs)
    blocks = -(-outputs * -(-inputs // _EIGHT) // THREADS)
    _kernels(weight.dtype).widen(
        (blocks,), THREADS, weight.codes, weight.scales, out, outputs, inputs
    )  # fmt: skip
    return out


def _read_product(
    weight: QuantizedMatrix, x: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    out = torch.empty(len(x), weight.outputs, dtype=x.dtype, device=x.device)
    grid = (-(-weight.outputs // _OUTPUTS), len(x))
    _kernels(weight.dtype).product(
        grid, THREADS, x, weight.codes, weight.scales, 0 if bias is None else bias, out,
        weight.outputs, weight.inputs,
    )  # fmt: skip
    return out


def _rows_product(
    weight: QuantizedMatrix, x: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    outputs, tiles = weight.outputs, _tiles(weight.outputs)
    out = torch.empty(len(x), outputs, dtype=x.dtype, device=x.device)
    grid = (-(-outputs // (tiles * _TILE_OUTPUTS)), -(-len(x) // _TILE_ROWS))
    _rows_kernel(weight.dtype, tiles)(
        grid, THREADS, x, weight.codes, weight.scales, 0 if bias is None else bias, out, len(x),
        outputs, weight.inputs,
    )  # fmt: skip
    return out
