"""Experts and layer calls for the native kernels' tests, for every code path of this CPU."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from moesaic.kernels.base import ALIGNMENT, Blocks, ExpertWeights, LayerExecutor
from moesaic.kernels.instruction_sets import REFERENCE, available
from moesaic.model_info.expert_shape import ExpertShape

pytest.importorskip("moesaic.kernels._native", reason="the native kernels were not built")

from moesaic.kernels import _native
from moesaic.kernels.native import NativeKernel
from moesaic.kernels.native_format import DTYPES, FLOAT_TYPES

torch.set_num_threads(1)
ISAS = [name for name in available() if name != REFERENCE]


class Way(NamedTuple):
    """A code path: an instruction set, and from how many tokens on it has products for many: in
    matrix tiles, or in vectors with shorter codes beside int4 weights."""

    isa: str
    tiles_from: int  # 0: never

    def __str__(self) -> str:
        return f"{self.isa}-{'many' if self.tiles_from else 'few'}"

    def differs(self, dtype: str) -> bool:
        """Whether many tokens of this precision are computed otherwise than few."""
        return self.isa == "amx" or dtype == "int4"

    def kernel(self, shape: ExpertShape, dtype: str) -> NativeKernel:
        return NativeKernel(shape, dtype, self.isa, self.tiles_from)


WAYS = [Way(isa, tiles_from) for isa in ISAS for tiles_from in (0, 1)]
every_way = pytest.mark.parametrize("way", WAYS, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
every_kernel = pytest.mark.parametrize(
    ("way", "dtype"),
    [(w, dtype) for w in WAYS for dtype in DTYPES if not w.tiles_from or w.differs(dtype)],
    ids=str,
)


def normal(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def random_expert(shape: ExpertShape, seed: int = 0) -> ExpertWeights:
    """Scaled so that activations stay near one."""
    wide = (shape.intermediate, shape.hidden)
    parts = [normal(*size, seed=10 * seed + n) for n, size in enumerate((wide, wide, wide[::-1]))]
    return ExpertWeights(*(part / part.shape[1] ** 0.5 for part in parts))


def bytes_at(count: int, margin: int = 0, misaligned: int = 0) -> torch.Tensor:
    """So many bytes at an aligned address, with `margin` bytes of memory before and after them."""
    memory = torch.full((count + 2 * (margin + ALIGNMENT),), 0xA7, dtype=torch.uint8)
    start = -(memory.data_ptr() + margin) % ALIGNMENT + margin + misaligned
    return memory[start : start + count]


def packed(kernel: NativeKernel, weights: ExpertWeights) -> torch.Tensor:
    block = bytes_at(kernel.block_bytes)
    kernel.pack(weights, block)
    return block


class Layer(NamedTuple):
    """Packed experts, and tokens routed to some of them."""

    kernel: NativeKernel
    blocks: Blocks
    hidden: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor

    def computed(
        self, executor: LayerExecutor, experts: list[int] | None = None, ragged: bool = False
    ) -> torch.Tensor:
        chosen = list(range(len(self.blocks.tensors))) if experts is None else experts
        out = torch.full(self.hidden.shape, -7.0)
        executor.layer(self.blocks, chosen, self.hidden, self.ids, self.weights, out, ragged)
        return out

    def call(self, out: torch.Tensor) -> _native.LayerCall:
        """All experts, as the extension takes it."""
        call = _native.LayerCall()
        call.block_table, call.experts_total = self.blocks.address, len(self.blocks.tensors)
        call.experts = list(range(len(self.blocks.tensors)))
        call.hidden, call.hidden_type = self.hidden.data_ptr(), FLOAT_TYPES[self.hidden.dtype]
        call.hidden_stride = self.hidden.stride(0)
        call.tokens, call.top_k = self.ids.shape
        call.ids, call.weights = self.ids.data_ptr(), self.weights.data_ptr()
        call.out, call.out_type = out.data_ptr(), FLOAT_TYPES[out.dtype]
        return call


def random_layer(
    kernel: NativeKernel, tokens: int, experts: int, top_k: int, seed: int = 0
) -> Layer:
    """Every token is routed to `top_k` different experts."""
    generator = torch.Generator().manual_seed(seed)
    blocks = Blocks([packed(kernel, random_expert(kernel.shape, seed + e)) for e in range(experts)])
    ids = torch.rand(tokens, experts, generator=generator).topk(top_k).indices
    weights = torch.rand(tokens, top_k, generator=generator)
    hidden = torch.randn(tokens, kernel.shape.hidden, generator=generator)
    return Layer(kernel, blocks, hidden, ids, weights)
