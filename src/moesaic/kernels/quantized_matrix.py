"""A dense matrix in int8 or int4 as it lies in memory, and where pieces of it are widened."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch

from moesaic.kernels.quantized_rows import widen_rows
from moesaic.model_info.dense_rows import SCRATCH, piece_rows


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
    """A matrix [outputs, inputs], laid out as `quantized_rows.py` says."""

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
