"""A dense matrix in int8 or int4 as it lies in memory, and where pieces of it are widened."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch.nn import functional

from moesaic.kernels.quantize import FORMATS, GroupFormat
from moesaic.model_info.dense_rows import SCRATCH, piece_rows, row_bytes


class Scratch:
    """Memory of a GPU for a piece of a widened matrix, in bf16. All matrices of a network share
    it: their products follow each other in one stream. It stays where it is, for CUDA graphs."""

    def __init__(self) -> None:
        self._weights = 0
        self._made: dict[torch.device, torch.Tensor] = {}

    def need(self, outputs: int, inputs: int) -> None:
        """A matrix of this shape is among them."""
        self._weights = max(self._weights, min(outputs, piece_rows(inputs, SCRATCH)) * inputs)

    def on(self, device: torch.device) -> torch.Tensor:
        made = self._made.get(device)
        if made is None or len(made) < self._weights:
            made = torch.empty(self._weights, dtype=torch.bfloat16, device=device)
            self._made[device] = made
        return made


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedMatrix:
    """A matrix [outputs, inputs], in the bytes described below."""

    codes: torch.Tensor  # uint8 [outputs, row bytes]
    scales: torch.Tensor  # bf16 [outputs, groups]
    inputs: int
    dtype: str
    scratch: Scratch

    @property
    def outputs(self) -> int:
        return len(self.codes)

    @property
    def nbytes(self) -> int:
        return int(self.codes.nbytes + self.scales.nbytes)

    def rows(self, first: int, end: int) -> Self:
        """Some of its outputs, on the same memory."""
        return replace(self, codes=self.codes[first:end], scales=self.scales[first:end])

    def widened(self, to: torch.dtype = torch.float32) -> torch.Tensor:
        """The weights, [outputs, inputs]."""
        return widen_rows(self.codes, self.scales, self.inputs, self.dtype, to)


# The bytes of a dense matrix in int8 or int4 as an accelerator keeps it: the codes and scales of
# `quantize.py`, laid out for GPUs. Row after row of codes, each a whole number of 16-byte reads,
# zero beyond its end. int8: a byte per input, in two's complement. int4: words of eight inputs,
# as in the native kernels' strips: nibble j of a word's lower half is input 2j, of its upper half
# input 2j + 1, stored as code + 8. Scales lie apart, bf16 [outputs, groups]. Rows of several
# matrices can stand one behind the other.

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
