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

    def __str__(self) -> str:
        return (
            f"experts are stored as {', '.join(self.stored)} and repacked as {self.dtype}, which "
            f"moves weights by {self.error:.2%} (root mean square, first expert)"
        )


def repacking(model: OpenModel, dtype: str) -> Repacking | None:
    """None where experts are stored in floating point."""
    stored = model.checkpoint.block_formats()
    if not stored:
        return None
    expert = readable_experts(model).read(ExpertId(0, 0))
    matrices = (expert.gate, expert.up, expert.down)
    moved = sum(_squares(_held(matrix, dtype) - matrix.float()) for matrix in matrices)
    whole = sum(_squares(matrix.float()) for matrix in matrices)
    return Repacking(stored, dtype, (moved / whole) ** 0.5 if whole else 0.0)


def _held(matrix: torch.Tensor, dtype: str) -> torch.Tensor:
    if dtype not in FORMATS:
        return matrix.to(torch_dtype(dtype)).float()
    form = FORMATS[dtype]
    found = quantize(matrix, form)
    columns = matrix.shape[1]
    return dequantize(pack_codes(found.codes, form), found.scales, columns, form, torch.float32)


def _squares(values: torch.Tensor) -> float:
    return float(values.double().square().sum())
