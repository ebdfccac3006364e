"""Matrices as small integers: a row is cut into groups of neighbouring weights, and a group's
weights are integer codes times one scale (bf16). Pure functions; where the bytes lie in an
expert's block is `quantized.py`.

The weight of largest magnitude in a group sets the scale: it becomes code 127 in int8 and code
-8 in int4, so the scale may be negative. With only 16 codes the lopsided choice pays: it uses all
of them, where 7 would leave one out. Root mean square errors relative to the weights', bf16
scales, on 640,000 weights (normal; Student's t with 4 degrees of freedom, which has outliers):

    int8, groups of 256                        0.70 %   1.3 %
    int4, groups of 32, largest to -8          8.6 %    11.6 %
    int4, largest to 7 or -7                   9.7 %    13.1 %
    int4, best of 4 scales per group           8.2 %    11.2 %   three times the packing time
    int4, best of 17 scales per group          8.1 %    11.1 %   eight times
    int4, 12 bits of scale, 4 of offset        8.1 %    9.7 %    one more step in every kernel

None of the last three gains enough for what it costs.

Weights that were 4-bit integers before, symmetric around 0 (Q4_0, most GPTQ), are whole multiples
of one step. Where the largest is not 8 of them, -8 for it would round all others a second time; it
gets the code it had, and only the scale is rounded, to bf16.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional

from moesaic.model_info.expert_block import FORMATS, SCALE_BYTES, GroupFormat

__all__ = [
    "FORMATS",
    "SCALE",
    "GroupFormat",
    "Quantized",
    "dequantize",
    "int4_tops",
    "pack_codes",
    "quantize",
]

SCALE = torch.bfloat16  # fp32's range: no weight is too large or too small to have a scale
assert SCALE.itemsize == SCALE_BYTES, "blocks are laid out for scales of this size"


_WHOLE = 1 / 1024  # how far from a whole number a multiple may be
_GLANCE = 2  # weights of a group that tell nearly all groups apart


class Quantized(NamedTuple):
    codes: torch.Tensor  # int8 [rows, columns], within the format's bits
    scales: torch.Tensor  # bf16 [rows, groups]; infinite or nan where a weight of the group is


def quantize(matrix: torch.Tensor, form: GroupFormat) -> Quantized:
    """Nearest codes for the scales as stored. The error is at most half a scale; in int4 at most
    1.04 scales for weights nearly as large as the group's largest and of the other sign.
    Groups too small for a normal scale (all weights below 2e-36) become zero."""
    columns = matrix.shape[1]
    filled = functional.pad(matrix.float(), (0, -columns % form.group))
    grouped = filled.unflatten(1, (-1, form.group))
    low, high = grouped.aminmax(dim=-1)
    largest = torch.where(high > -low, high, low)
    top = form.largest_code if form.bits == 8 else -int4_tops(grouped, largest)
    scales = (largest / top).to(SCALE)
    scales[scales.abs() < torch.finfo(SCALE).tiny] = 0.0
    divisors = torch.where(scales == 0.0, 1.0, scales.float())[:, :, None]
    limit = 2 ** (form.bits - 1)
    codes = (grouped / divisors).round_().clamp_(-limit, limit - 1).to(torch.int8)
    return Quantized(codes.flatten(1)[:, :columns], scales)


def int4_tops(grouped: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """[rows, groups]: the code of an int4 group's largest weight, the sign left out. 8, where codes
    that the group had before are not kept by another."""
    tops, undecided = torch.full_like(largest, 8.0), largest != 0.0
    shares = grouped[..., :_GLANCE] / largest[..., None]
    for top in range(8, 0, -1):
        codes = shares * top
        glance = ((codes - codes.round()).abs_() < 2 * _WHOLE).all(dim=-1) & undecided
        if not bool(glance.any()):
            continue
        kept = glance.clone()
        kept[glance] = _on_grid(grouped[glance], largest[glance], top)
        tops[kept] = top
        undecided &= ~kept
    return tops


def _on_grid(weights: torch.Tensor, largest: torch.Tensor, top: int) -> torch.Tensor:
    """Whether the weights of a group are whole multiples of largest / top, and have codes: with 8,
    none as large as the largest has the other sign."""
    codes = weights * (top / largest)[..., None]
    return (((codes - codes.round()).abs() < _WHOLE) & (codes > -7.5)).all(dim=-1)


def pack_codes(codes: torch.Tensor, form: GroupFormat) -> torch.Tensor:
    """int8 [rows, row_bytes]. A byte of int4 has in its low half a code of the row's first half,
    in its high half the one as far into the second half, both in two's complement."""
    if form.bits == 8:
        return codes
    half = form.row_bytes(codes.shape[1])
    low, high = codes[:, :half], functional.pad(codes[:, half:], (0, codes.shape[1] % 2))
    return (low & 0x0F) | (high << 4)


def dequantize(
    packed: torch.Tensor,
    scales: torch.Tensor,
    columns: int,
    form: GroupFormat,
    dtype: torch.dtype,
) -> torch.Tensor:
    """[rows, columns], each weight the exact product of code and scale rounded once to `dtype`."""
    # fp16 goes through fp32: many a scale is below what fp16 holds with full precision.
    exact = torch.float32 if dtype == torch.float16 else dtype
    weights = torch.empty((len(packed), columns), dtype=exact, device=packed.device)
    _unpack_codes(packed, weights, form)
    whole = columns - columns % form.group
    groups = whole // form.group
    weights[:, :whole].unflatten(1, (groups, form.group)).mul_(scales[:, :groups, None])
    if whole < columns:
        weights[:, whole:].mul_(scales[:, -1:])
    return weights.to(dtype)


def _unpack_codes(packed: torch.Tensor, out: torch.Tensor, form: GroupFormat) -> None:
    if form.bits == 8:
        out.copy_(packed)
        return
    half = packed.shape[1]
    codes = packed << 4
    codes >>= 4  # arithmetic: the sign comes along
    out[:, :half].copy_(codes)
    torch.bitwise_right_shift(packed, 4, out=codes)
    out[:, half:].copy_(codes[:, : out.shape[1] - half])
