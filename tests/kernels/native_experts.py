"""Experts for the native kernels' tests: every path that this CPU has, blocks where they belong."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from moesaic.kernels.base import ALIGNMENT, Blocks, ExpertShape, ExpertWeights, LayerCrew
from moesaic.kernels.instruction_sets import REFERENCE, available

pytest.importorskip("moesaic.kernels._native", reason="the native kernels were not built")

from moesaic.kernels.native import DTYPES, NativeKernel

torch.set_num_threads(1)
ISAS = [name for name in available() if name != REFERENCE]


class Way(NamedTuple):
    """Through which products: those of an instruction set, in tiles from so many tokens on."""

    isa: str
    tiles_from: int  # 0: never

    def __str__(self) -> str:
        return f"{self.isa}-{'tiles' if self.tiles_from else 'vectors'}"

    def kernel(self, shape: ExpertShape, dtype: str) -> NativeKernel:
        return NativeKernel(shape, dtype, self.isa, self.tiles_from)


WAYS = [Way(isa, 0) for isa in ISAS] + [Way(isa, 1) for isa in ISAS if isa == "amx"]
every_way = pytest.mark.parametrize("way", WAYS, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def normal(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def random_expert(shape: ExpertShape, seed: int = 0) -> ExpertWeights:
    """Of a size that keeps activations near one."""
    wide = (shape.intermediate, shape.hidden)
    parts = [normal(*size, seed=10 * seed + n) for n, size in enumerate((wide, wide, wide[::-1]))]
    return ExpertWeights(*(part / part.shape[1] ** 0.5 for part in parts))


def bytes_at(count: int, room: int = 0, misaligned: int = 0) -> torch.Tensor:
    """So many bytes at an aligned address, with `room` bytes of memory before and after them."""
    memory = torch.full((count + 2 * (room + ALIGNMENT),), 0xA7, dtype=torch.uint8)
    start = -(memory.data_ptr() + room) % ALIGNMENT + room + misaligned
    return memory[start : start + count]


def packed(kernel: NativeKernel, weights: ExpertWeights) -> torch.Tensor:
    block = bytes_at(kernel.block_bytes)
    kernel.pack(weights, block)
    return block


class Layer(NamedTuple):
    """Packed experts and tokens that want some of them."""

    kernel: NativeKernel
    blocks: Blocks
    hidden: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor

    def computed(
        self, crew: LayerCrew, experts: list[int] | None = None, ragged: bool = False
    ) -> torch.Tensor:
        chosen = list(range(len(self.blocks.tensors))) if experts is None else experts
        out = torch.full(self.hidden.shape, -7.0)
        crew.layer(self.blocks, chosen, self.hidden, self.ids, self.weights, out, ragged)
        return out


def random_layer(
    kernel: NativeKernel, tokens: int, experts: int, top_k: int, seed: int = 0
) -> Layer:
    """Every token wants `top_k` different experts."""
    generator = torch.Generator().manual_seed(seed)
    blocks = Blocks([packed(kernel, random_expert(kernel.shape, seed + e)) for e in range(experts)])
    ids = torch.rand(tokens, experts, generator=generator).topk(top_k).indices
    weights = torch.rand(tokens, top_k, generator=generator)
    hidden = torch.randn(tokens, kernel.shape.hidden, generator=generator)
    return Layer(kernel, blocks, hidden, ids, weights)
