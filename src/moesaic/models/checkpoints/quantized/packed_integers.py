"""compressed-tensors, `pack-quantized`: `weight_packed` [out, in / 8] in 32-bit words, numbers from
-8 stored as from 0 (for 4 bits), `weight_scale` [out, groups], `weight_shape`, and where they are
not symmetric `weight_zero_point` [out / 8, groups], packed along its rows. `weight_g_idx` is there
where inputs were quantized by importance.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch

from moesaic.model_info.quantization.kinds import Awq, Gptq, PackedIntegers
from moesaic.models.checkpoints.quantized.layout import (
    FLOATS,
    Parts,
    StoredTensor,
    Unfit,
    checked_index,
    groups,
    multiple,
    only_matrices,
    stem,
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


# GPTQ: `qweight` [in / 8, out] and `qzeros` [groups, out / 8] in 32-bit words, `scales` [groups,
# out], and `g_idx` [in], the group of every input, which is in any order where inputs were
# quantized by importance (`desc_act`).


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


# AWQ, `gemm` layout: `qweight` [in, out / 8] and `qzeros` [groups, out / 8] in 32-bit words whose
# nibbles have the columns 0, 2, 4, 6, 1, 3, 5, 7; `scales` [groups, out].

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
