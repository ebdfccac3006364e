"""GPTQ: `qweight` [in / 8, out] and `qzeros` [groups, out / 8] in 32-bit words, `scales`
[groups, out], and `g_idx` [in], the group of every input, which is in any order where inputs were
quantized by importance (`desc_act`).
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch

from moesaic.model_info.quantization.kinds import Gptq
from moesaic.models.checkpoints.quantized.layout import (
    FLOATS,
    Parts,
    StoredTensor,
    checked_index,
    groups,
    multiple,
    only_matrices,
    stem,
)
from moesaic.models.checkpoints.quantized.packing import scaled, unpack

_WORD = 32


class GptqLayout:
    def __init__(self, form: Gptq) -> None:
        self.title = form.title
        self._form = form

    def marker(self, name: str) -> str:
        return f"{stem(name)}.qweight"

    def parts(
        self, name: str, shape: Sequence[int], stored: Container[str]
    ) -> dict[str, StoredTensor]:
        only_matrices(shape)
        rows, columns = shape
        per_word = _WORD // self._form.bits
        multiple("inputs", columns, per_word)
        multiple("outputs", rows, per_word)
        count, base = groups(columns, self._form.group), stem(name)
        found = {
            "words": StoredTensor(f"{base}.qweight", (columns // per_word, rows), ("I32",)),
            "zeros": StoredTensor(f"{base}.qzeros", (count, rows // per_word), ("I32",)),
            "scales": StoredTensor(f"{base}.scales", (count, rows), FLOATS),
        }
        index = f"{base}.g_idx"
        return found | (
            {"index": StoredTensor(index, (columns,), ("I32",))} if index in stored else {}
        )

    def dequantize(self, parts: Parts, shape: Sequence[int]) -> torch.Tensor:
        bits, scales = self._form.bits, parts["scales"].T
        numbers = unpack(parts["words"].T, bits)
        # The first format stores zero points less one, and 0 as the largest.
        zeros = (unpack(parts["zeros"], bits).T + self._form.zero_offset) & (2**bits - 1)
        return scaled(numbers, scales, zeros, checked_index(parts.get("index"), scales.shape[1]))

    def is_harmless(self, name: str) -> bool:
        return False
