"""MXFP4 as gpt-oss has it: a stack of experts [experts, in, out] is stored transposed, as `_blocks`
[experts, out, in / 32, 16], two 4-bit floats (e2m1) per byte, the lower half first, and `_scales`
[experts, out, in / 32], exponents of 2 that are stored plus 127.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch

from moesaic.model_info.quantization.kinds import Mxfp4
from moesaic.models.checkpoints.quantized.layout import Parts, StoredTensor, Unfit, multiple

_WEIGHTS, _BYTES = 32, 16  # of a block
_BIAS = 127
NAN_SCALE = 0xFF  # of e8m0, by the OCP Microscaling specification
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_AT_ONCE = 1 << 20  # bytes


class Mxfp4Layout:
    def __init__(self, form: Mxfp4) -> None:
        self.title = form.title

    def marker(self, name: str) -> str:
        return f"{name}_blocks"

    def parts(
        self, name: str, shape: Sequence[int], stored: Container[str]
    ) -> dict[str, StoredTensor]:
        if len(shape) != 3:
            raise Unfit(f"expected a stack of matrices where {list(shape)} is expected")
        experts, inputs, outputs = shape
        multiple("inputs", inputs, _WEIGHTS)
        blocks = (experts, outputs, inputs // _WEIGHTS)
        return {
            "blocks": StoredTensor(self.marker(name), (*blocks, _BYTES), ("U8",)),
            "scales": StoredTensor(f"{name}_scales", blocks, ("U8",)),
        }

    def dequantize(self, parts: Parts, shape: Sequence[int]) -> torch.Tensor:
        inputs, outputs = shape
        weights = _values(parts["blocks"].flatten()).view(outputs, -1, _WEIGHTS)
        if bool((parts["scales"] == NAN_SCALE).any()):
            raise Unfit(f"a scale is 0x{NAN_SCALE:X}, which means that its block is no number")
        exponents = parts["scales"].int() - _BIAS
        weights *= torch.ldexp(torch.ones(exponents.shape), exponents)[..., None]
        return weights.view(outputs, inputs).T

    def is_harmless(self, name: str) -> bool:
        return False


def _values(data: torch.Tensor) -> torch.Tensor:
    """uint8 [n] to fp32 [2 n]. Some at a time: the index of the table is four times as large."""
    found, pairs = torch.empty(len(data), dtype=torch.float64), _pairs()
    for start in range(0, len(data), _AT_ONCE):
        here = slice(start, start + _AT_ONCE)
        torch.index_select(pairs, 0, data[here].int(), out=found[here])
    return found.view(torch.float32)


def _pairs() -> torch.Tensor:
    """Every byte's two values, side by side as one fp64 that is only copied: one lookup instead of
    two."""
    values = torch.tensor([*_VALUES, *(-value for value in _VALUES)])
    both = torch.stack((values.repeat(16), values.repeat_interleave(16)), dim=1)
    return both.view(torch.float64).flatten()
