"""The bytes of a dense matrix in int8 or int4 as an accelerator keeps it: the codes and scales of
`quantize.py`, laid out for GPUs.

Row after row of codes, each a whole number of 16-byte reads, zero beyond its end. int8: a byte per
input, in two's complement. int4: words of eight inputs, as in the native kernels' strips: nibble j
of a word's lower half is input 2j, of its upper half input 2j + 1, stored as code + 8. Scales lie
apart, bf16 [outputs, groups]. Rows of several matrices can stand one behind the other."""

from __future__ import annotations

import torch
from torch.nn import functional

from moesaic.kernels.quantize import FORMATS, GroupFormat
from moesaic.model_info.dense_rows import row_bytes

_WORD = 8  # int4 codes
_OFFSET = 8  # of an int4 code
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # inputs of a word, from its lowest nibble to its highest


def pack_rows(codes: torch.Tensor, form: GroupFormat) -> torch.Tensor:
    """int8 codes [outputs, inputs] to uint8 [outputs, row_bytes]."""
    inputs = codes.shape[1]
    width = row_bytes(form, inputs) * 8 // form.bits
    filled = functional.pad(codes, (0, width - inputs))
    if form.bits == 8:
        return filled.contiguous().view(torch.uint8)
    nibbles = (filled + _OFFSET).view(torch.uint8).unflatten(1, (-1, _WORD))[..., _ORDER]
    return (nibbles[..., 0::2] | nibbles[..., 1::2] << 4).flatten(1)


def unpack_rows(packed: torch.Tensor, inputs: int, form: GroupFormat) -> torch.Tensor:
    """The int8 codes [outputs, inputs] again."""
    if form.bits == 8:
        return packed.view(torch.int8)[:, :inputs]
    halves = torch.stack((packed & 0x0F, packed >> 4), dim=-1).flatten(1)
    codes = torch.empty_like(halves)
    codes.unflatten(1, (-1, _WORD))[..., _ORDER] = halves.unflatten(1, (-1, _WORD))
    return (codes.view(torch.int8) - _OFFSET)[:, :inputs]


def widen_rows(
    packed: torch.Tensor, scales: torch.Tensor, inputs: int, dtype: str, to: torch.dtype
) -> torch.Tensor:
    """[outputs, inputs]: each weight the exact product of code and scale, rounded once to `to`."""
    form = FORMATS[dtype]
    wide = unpack_rows(packed, inputs, form).float()
    whole = inputs - inputs % form.group
    groups = whole // form.group
    wide[:, :whole].unflatten(1, (groups, form.group)).mul_(scales[:, :groups, None])
    if whole < inputs:
        wide[:, whole:].mul_(scales[:, -1:])
    return wide.to(to)
