"""FP8 (or 8-bit integers) with one scale per block: DeepSeek-V3's `weight_scale_inv`, and
compressed-tensors' `weight_scale` of a tensor, a row, a group or a block.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch

from moesaic.model_info.quantization.kinds import Scaled
from moesaic.models.checkpoints.quantized.layout import FLOATS, Parts, StoredTensor, only_matrices
from moesaic.models.checkpoints.quantized.packing import scaled

_OF_ACTIVATIONS = (".input_scale", ".activation_scale", ".input_zero_point")


class ScaledLayout:
    def __init__(self, form: Scaled) -> None:
        self.title = form.title
        self._form = form

    def marker(self, name: str) -> str:
        return f"{name}{self._form.suffix}"

    def parts(
        self, name: str, shape: Sequence[int], stored: Container[str]
    ) -> dict[str, StoredTensor]:
        only_matrices(shape, stacks=True)
        sizes = tuple(shape)
        return {
            "numbers": StoredTensor(name, sizes, (self._form.element,)),
            "scales": StoredTensor(self.marker(name), self._scale_shape(sizes), FLOATS),
        }

    def dequantize(self, parts: Parts, shape: Sequence[int]) -> torch.Tensor:
        rows, columns = shape
        scales = parts["scales"].view(self._blocks(rows, columns))
        of_rows = scales.repeat_interleave(self._form.rows or rows, dim=0)[:rows]
        width = self._form.columns or columns
        group_of = torch.arange(columns) // width if columns % width else None
        return scaled(parts["numbers"], of_rows, group_of=group_of)

    def is_harmless(self, name: str) -> bool:
        return name.endswith(_OF_ACTIVATIONS)

    def _blocks(self, rows: int, columns: int) -> tuple[int, int]:
        """The last of a row or column may be smaller."""
        form = self._form
        return -(-rows // (form.rows or rows)), -(-columns // (form.columns or columns))

    def _scale_shape(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """One scale for a whole tensor has no row and column."""
        if self._form.rows is None and self._form.columns is None:
            return (*sizes[:-2], 1)
        return (*sizes[:-2], *self._blocks(sizes[-2], sizes[-1]))
