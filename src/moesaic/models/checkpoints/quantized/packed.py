"""compressed-tensors, `pack-quantized`: `weight_packed` [out, in / 8] in 32-bit words, numbers from
-8 stored as from 0 (for 4 bits), `weight_scale` [out, groups], `weight_shape`, and where they are
not symmetric `weight_zero_point` [out / 8, groups], packed along its rows. `weight_g_idx` is there
where inputs were quantized by importance.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch

from moesaic.model_info.quantization.kinds import PackedIntegers
from moesaic.models.checkpoints.quantized.layout import (
    FLOATS,
    Parts,
    StoredTensor,
    Unfit,
    checked_index,
    groups,
    only_matrices,
)
from moesaic.models.checkpoints.quantized.packing import scaled, unpack

_WORD = 32
_UNSET = -1  # in `weight_g_idx`: columns are in their order


class PackedLayout:
    def __init__(self, form: PackedIntegers) -> None:
        self.title = form.title
        self._form = form

    def marker(self, name: str) -> str:
        return f"{name}_packed"

    def parts(
        self, name: str, shape: Sequence[int], stored: Container[str]
    ) -> dict[str, StoredTensor]:
        only_matrices(shape)
        rows, columns = shape
        count = groups(columns, self._form.group)
        found = {
            "words": StoredTensor(self.marker(name), (rows, self._words(columns)), ("I32",)),
            "scales": StoredTensor(f"{name}_scale", (rows, count), FLOATS),
            "shape": StoredTensor(f"{name}_shape", (2,), ("I64", "I32")),
        }
        if not self._form.symmetric:
            found["zeros"] = StoredTensor(
                f"{name}_zero_point", (self._words(rows), count), ("I32",)
            )
        index = f"{name}_g_idx"
        return found | (
            {"index": StoredTensor(index, (columns,), ("I32",))} if index in stored else {}
        )

    def dequantize(self, parts: Parts, shape: Sequence[int]) -> torch.Tensor:
        rows, columns = shape
        stated = parts["shape"].tolist()
        if stated != [rows, columns]:
            raise Unfit(f"weight_shape says {stated}, expected [{rows}, {columns}]")
        bits, scales = self._form.bits, parts["scales"]
        numbers = unpack(parts["words"], bits)[:, :columns]
        zeros: torch.Tensor | int = 1 << (bits - 1)
        if "zeros" in parts:
            zeros = unpack(parts["zeros"].T, bits)[:, :rows].T
        index = parts.get("index")
        if index is not None and bool((index == _UNSET).any()):
            index = None
        return scaled(numbers, scales, zeros, checked_index(index, scales.shape[1]))

    def is_harmless(self, name: str) -> bool:
        return name.endswith((".input_scale", ".input_zero_point"))

    def _words(self, count: int) -> int:
        """The last may not be full."""
        return -(-count * self._form.bits // _WORD)
