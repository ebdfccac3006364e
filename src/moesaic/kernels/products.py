"""Matrix products in the precision of the weights, at a usable speed on every CPU.

PyTorch's bf16 product on an ARM processor without bf16 instructions takes some hundred times as
long as its fp32 product. There weights are widened a piece at a time, multiplied in fp32 and
rounded once at the end, as a bf16 product is anyway."""

from __future__ import annotations

from functools import cache
from platform import machine

import torch
from torch.nn import functional

PIECE = 1 << 20  # weights that are widened at once


@cache
def widens(dtype: torch.dtype) -> bool:
    """Whether products of this precision are computed in fp32 on this CPU."""
    if dtype is not torch.bfloat16 or machine() not in ("aarch64", "arm64"):
        return False
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias, like `functional.linear`."""
    if x.is_cuda or not widens(x.dtype):
        return functional.linear(x, weight, bias)
    wide = x.float()
    rows = max(PIECE // weight.shape[1], 1)
    pieces = [functional.linear(wide, part.float()) for part in weight.split(rows)]
    product = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)
    return (product if bias is None else product + bias.float()).to(x.dtype)


def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x @ y of stacked matrices, like `torch.matmul`."""
    if x.is_cuda or not widens(x.dtype):
        return torch.matmul(x, y)
    return torch.matmul(x.float(), y.float()).to(x.dtype)
