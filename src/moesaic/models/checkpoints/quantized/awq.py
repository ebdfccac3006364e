"""AWQ, `gemm` layout: `qweight` [in, out / 8] and `qzeros` [groups, out / 8] in 32-bit words whose
nibbles have the columns 0, 2, 4, 6, 1, 3, 5, 7; `scales` [groups, out].
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch

from moesaic.model_info.quantization.kinds import Awq
from moesaic.models.checkpoints.quantized.layout import (
    FLOATS,
    Parts,
    StoredTensor,
    groups,
    multiple,
    only_matrices,
    stem,
)
from moesaic.models.checkpoints.quantized.packing import scaled

_PER_WORD = 8
_NIBBLE_OF = (0, 4, 1, 5, 2, 6, 3, 7)  # column of a word -> where it is


class AwqLayout:
    def __init__(self, form: Awq) -> None:
        self.title = form.title
        self._form = form

    def marker(self, name: str) -> str:
        return f"{stem(name)}.qweight"

    def parts(
        self, name: str, shape: Sequence[int], stored: Container[str]
    ) -> dict[str, StoredTensor]:
        only_matrices(shape)
        rows, columns = shape
        multiple("outputs", rows, _PER_WORD)
        count, base = groups(columns, self._form.group), stem(name)
        return {
            "words": StoredTensor(f"{base}.qweight", (columns, rows // _PER_WORD), ("I32",)),
            "zeros": StoredTensor(f"{base}.qzeros", (count, rows // _PER_WORD), ("I32",)),
            "scales": StoredTensor(f"{base}.scales", (count, rows), FLOATS),
        }

    def dequantize(self, parts: Parts, shape: Sequence[int]) -> torch.Tensor:
        numbers, zeros = _unpacked(parts["words"]), _unpacked(parts["zeros"])
        return scaled(numbers, parts["scales"].T, zeros)

    def is_harmless(self, name: str) -> bool:
        return False


def _unpacked(words: torch.Tensor) -> torch.Tensor:
    """int32 [in, n] to uint8 [8 n, in]: columns in their order, as rows."""
    rows = words.T.contiguous()
    found = torch.empty(rows.shape[0], _PER_WORD, rows.shape[1], dtype=torch.uint8)
    for column, nibble in enumerate(_NIBBLE_OF):
        found[:, column] = (rows >> (4 * nibble)) & 0x0F
    return found.flatten(0, 1)
