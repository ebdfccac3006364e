"""GGUF's quantized blocks to fp32, exactly as ggml defines them.

Every function takes blocks, uint8 [blocks, bytes of one], and gives fp32 [blocks, weights of one].
Products are rounded in ggml's order, so that the values are ggml's to the bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from moesaic.model_info.gguf.tensor_types import TensorType

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_AT_ONCE = 1 << 20  # weights: what the steps in between may take
# Twice the values of fp4 (e2m1): the scale is halved instead.
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def dequantize(raw: torch.Tensor, kind: TensorType) -> torch.Tensor:
    """Bytes of whole blocks to weights, both flat. Types that are no blocks stay as they are."""
    if kind.name in FLOATS:
        return raw.view(FLOATS[kind.name])
    blocks = raw.view(-1, kind.bytes)
    weights = torch.empty(len(blocks), kind.weights)
    step = max(1, _AT_ONCE // kind.weights)
    for start in range(0, len(blocks), step):
        weights[start : start + step] = _BLOCKS[kind.name](blocks[start : start + step])
    return weights.view(-1)


def has_nan_scale(raw: torch.Tensor, kind: TensorType) -> bool:
    """The scale 0xFF of MXFP4 is NaN by the OCP Microscaling specification."""
    return kind.name == "MXFP4" and bool((raw.view(-1, kind.bytes)[:, 0] == 0xFF).any())


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """The fp16 number that begins at byte `start` of every block, fp32 [blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(data: torch.Tensor) -> torch.Tensor:
    """Low halves of all bytes, then high halves."""
    return torch.cat((data & 0x0F, data >> 4), dim=-1)


def _bits(data: torch.Tensor, shifts: torch.Tensor, mask: int) -> torch.Tensor:
    """uint8 [..., n] and shifts [s] to [..., s, n]."""
    return (data[..., None, :] >> shifts[:, None]) & mask


def _shifts(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).float() - 8)


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).float() + _half(blocks, 2)


def _five_bits(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """`high` has the fifth bits of 32 weights, least significant first."""
    fifth = (high[..., None] >> _shifts(*range(8))) & 1
    return (_nibbles(low) | (fifth.flatten(1) << 4)).float()


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * (_five_bits(blocks[:, 2:6], blocks[:, 6:]) - 16)


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * _five_bits(blocks[:, 4:8], blocks[:, 8:]) + _half(blocks, 2)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].contiguous().view(torch.int8).float() * _half(blocks, 0)


def _scales_and_minima(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and minima of the eight groups of 32 weights, fp32 [blocks, 8, 1]. They are 6 bits
    wide; of the last four groups, the upper 2 bits are above those of the first four."""
    first, second, third = blocks[:, 4:16].split(4, dim=1)
    scales = torch.cat((first & 0x3F, (third & 0x0F) | ((first >> 2) & 0x30)), dim=1)
    minima = torch.cat((second & 0x3F, (third >> 4) | ((second >> 2) & 0x30)), dim=1)
    scale, minimum = _half(blocks, 0) * scales.float(), _half(blocks, 2) * minima.float()
    return scale[..., None], minimum[..., None]


def _groups_of_nibbles(data: torch.Tensor) -> torch.Tensor:
    """128 bytes to [blocks, 8, 32]: 32 bytes have two groups, one in each half."""
    return _bits(data.unflatten(1, (4, 32)), _shifts(0, 4), 0x0F).flatten(1, 2)


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    scale, minimum = _scales_and_minima(blocks)
    return (scale * _groups_of_nibbles(blocks[:, 16:]).float() - minimum).flatten(1)


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    scale, minimum = _scales_and_minima(blocks)
    fifth = _bits(blocks[:, 16:48], _shifts(*range(8)), 1)  # bit g of byte i: group g, weight i
    values = _groups_of_nibbles(blocks[:, 48:]) | (fifth << 4)
    return (scale * values.float() - minimum).flatten(1)


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    """Two halves of 128 weights, each with 64 bytes of low bits and 32 of high ones."""
    low = _bits(blocks[:, :128].unflatten(1, (2, 64)), _shifts(0, 4), 0x0F)  # [blocks, 2, 2, 64]
    high = _bits(blocks[:, 128:192].unflatten(1, (2, 32)), _shifts(0, 2, 4, 6), 3)
    values = low.flatten(1) | (high.flatten(1) << 4)
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float() * _half(blocks, 208)
    return (scales[..., None] * (values.float() - 32).unflatten(1, (16, 16))).flatten(1)


def _mxfp4(blocks: torch.Tensor) -> torch.Tensor:
    exponents = blocks[:, :1].double() - 128
    scale = torch.pow(2.0, exponents).float()
    return scale * torch.tensor(_FP4, dtype=torch.float32)[_nibbles(blocks[:, 1:]).int()]


_BLOCKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "MXFP4": _mxfp4,
}
