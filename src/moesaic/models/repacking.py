"""What it costs to store quantized experts in our own layout: measured, not assumed."""

from __future__ import annotations

from typing import NamedTuple

import torch

from moesaic.core.routing import ExpertId
from moesaic.kernels.dtypes import torch_dtype
from moesaic.kernels.quantize import FORMATS, dequantize, pack_codes, quantize
from moesaic.models.open_model import OpenModel, readable_experts


class Repacking(NamedTuple):
    stored: tuple[str, ...]  # block formats of the file
    dtype: str  # what the experts are held in
    error: float  # root mean square over that of the weights, of the first expert
    codes_kept: bool = False  # only its scales were rounded

    def __str__(self) -> str:
        how = f"repacked as {self.dtype}"
        if self.codes_kept:
            how = f"repacked as {self.dtype} with the codes they have and scales in bf16"
        elif self.dtype == "int4":
            how = "repacked as int4, rounded to other codes"
        return (
            f"experts are stored as {', '.join(self.stored)} and {how}, which moves weights by "
            f"{self.error:.2%} (root mean square, first expert)"
        )


def repacking(model: OpenModel, dtype: str) -> Repacking | None:
    """None where experts are stored in floating point."""
    stored = model.checkpoint.block_formats()
    if not stored:
        return None
    expert = readable_experts(model).read(ExpertId(0, 0))
    matrices = [matrix.float() for matrix in (expert.gate, expert.up, expert.down)]
    moved = [_held(matrix, dtype) - matrix for matrix in matrices]
    whole = sum(map(_squares, matrices))
    error = (sum(map(_squares, moved)) / whole) ** 0.5 if whole else 0.0
    kept = dtype == "int4" and all(map(_within_scale, moved, matrices))
    return Repacking(stored, dtype, error, kept)


def _within_scale(moved: torch.Tensor, matrix: torch.Tensor) -> bool:
    """Whether no weight moved by more than its scale did, which has 8 bits."""
    return bool((moved.abs() <= matrix.abs() / 255).all())


def _held(matrix: torch.Tensor, dtype: str) -> torch.Tensor:
    if dtype not in FORMATS:
        return matrix.to(torch_dtype(dtype)).float()
    form = FORMATS[dtype]
    found = quantize(matrix, form)
    columns = matrix.shape[1]
    return dequantize(pack_codes(found.codes, form), found.scales, columns, form, torch.float32)


def _squares(values: torch.Tensor) -> float:
    return float(values.double().square().sum())
