"""One of the two vectors of every token, in all layers that keep every token: as computed, in
another floating-point format, or as codes with scales beside them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from moesaic.models.attentions.kv_codes import rounded, widened


class LayerVectors(NamedTuple):
    """Of one layer: [blocks, tokens of a block, width], and [blocks, tokens of a block, heads]."""

    values: torch.Tensor
    scales: torch.Tensor | None


class KeptVectors:
    """`values` [layers, blocks, tokens of a block, width] stay where they are, as do `scales`
    [layers, blocks, tokens of a block, heads], which only codes have."""

    def __init__(
        self, shape: tuple[int, int, int], width: int, stored: torch.dtype, heads: int, device: str
    ) -> None:
        """`heads`: parts of a vector that have a scale each, where `stored` is int8."""
        self.values = torch.zeros((*shape, width), dtype=stored, device=device)
        self.scales: torch.Tensor | None = None
        if stored is torch.int8:
            self.scales = torch.zeros((*shape, heads), dtype=torch.float16, device=device)

    @property
    def parts(self) -> list[torch.Tensor]:
        return [self.values] if self.scales is None else [self.values, self.scales]

    def of(self, layer: int) -> LayerVectors:
        return LayerVectors(self.values[layer], None if self.scales is None else self.scales[layer])

    def write(self, layer: int, rows: torch.Tensor, new: torch.Tensor) -> None:
        """Vectors [tokens, width] at these rows of all blocks."""
        values = self.values[layer].flatten(0, 1)
        if self.scales is None:
            values[rows] = new.to(values.dtype)
        else:
            scales = self.scales[layer].flatten(0, 1)
            values[rows], scales[rows] = rounded(new, scales.shape[-1])

    def read(self, layer: int, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The vectors [tokens, width] at these rows, in `dtype`, which the network has."""
        values = self.values[layer].flatten(0, 1)[rows]
        if self.scales is None:
            return values.to(dtype)
        return widened(values, self.scales[layer].flatten(0, 1)[rows], dtype)
