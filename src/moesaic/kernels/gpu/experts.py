"""Launches of the GPU's expert kernels: two per layer, whatever the number of experts."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
import triton.language as tl

from moesaic.kernels.base import ExpertShape
from moesaic.kernels.gpu import matrix
from moesaic.kernels.gpu.driver import Function, Module, architecture
from moesaic.kernels.gpu.layout import BITS, BlockWords
from moesaic.kernels.gpu.nvrtc import compile_source
from moesaic.kernels.gpu.table import TableShape

_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
_MATRIX_ROWS = {16: 32, 8: 64, 4: 16}  # rows of words per product: int8's group of inputs is 64


def supports(shape: ExpertShape, dtype: str) -> bool:
    """Whole words only."""
    whole = shape.hidden % 8 == 0 and shape.intermediate % 8 == 0
    return dtype in BITS and shape.activation in _ACTIVATIONS and whole


class Tuning(NamedTuple):
    """How the one-row kernels are cut: threads of a block, blocks that must fit a multiprocessor
    together, 16-byte reads that a thread has under way per strip, strips of the down matrix that a
    block computes."""

    threads: int = 256
    min_blocks: int = 4
    unroll: int = 4
    down_strips: int = 2


class GpuExperts:
    """Computes the experts of a table for up to so many tokens. Its buffers stay where they are,
    so launches can be captured in a graph."""

    def __init__(
        self, shape: ExpertShape, dtype: str, tokens: int, top_k: int, experts: int,
        device: str = "cuda", tuning: Tuning | None = None,
        buffers: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        """`buffers`: `inner` and `parts` of another one, for at least as many tokens."""
        assert supports(shape, dtype), f"no GPU kernel for {shape} in {dtype}"
        self.shape, self.words = shape, BlockWords(shape, dtype)
        self.table_shape = TableShape.of(tokens, top_k, experts)
        self._tokens, self._top_k = tokens, top_k
        self._tuning = Tuning() if tuning is None else tuning
        pairs = tokens * top_k
        if buffers is None:
            inner = torch.zeros(pairs, shape.intermediate, dtype=torch.bfloat16, device=device)
            parts = torch.zeros(pairs, shape.hidden, dtype=torch.float32, device=device)
            buffers = inner, parts
        self.inner, self.parts = (buffer[:pairs] for buffer in buffers)

    def launch(self, table: torch.Tensor, x: torch.Tensor) -> None:
        """`parts[pair]` becomes the expert's result for the pair's token, not yet weighted, for
        all pairs in the table. x [tokens, hidden] bf16."""
        if self._tokens == 1 and x.is_cuda:
            self._vector(table, x)
        else:
            self._matrix(table, x)

    def _places(self) -> dict[str, int]:
        shape = self.table_shape
        return {
            "FILLS_AT": shape.fills_at, "WAITS_AT": shape.waits_at,
            "FIRSTS_AT": shape.firsts_at, "ROWS_AT": shape.rows_at,
        }  # fmt: skip

    @cached_property
    def _one_row(self) -> tuple[Function, Function]:
        tuning = self._tuning
        defines = {
            **self._places(), "HIDDEN": self.shape.hidden, "INTERMEDIATE": self.shape.intermediate,
            "TOP_K": self._top_k, "BITS": self.words.up.bits,
            "ACTIVATION": list(_ACTIVATIONS).index(self.shape.activation),
            "THREADS": tuning.threads, "MIN_BLOCKS": tuning.min_blocks,
            "UNROLL": tuning.unroll, "DOWN_COUNT": self._down_strips,
        }  # fmt: skip
        module = Module(compile_source("experts", defines, architecture()))
        return module.function("up_vector"), module.function("down_vector")

    @property
    def _down_strips(self) -> int:
        wanted = self._tuning.down_strips
        return wanted if self.words.down.strips % wanted == 0 else 1

    def _vector(self, table: torch.Tensor, x: torch.Tensor) -> None:
        up, down = self._one_row
        experts, threads = self.table_shape.experts, self._tuning.threads
        up((self.words.up.strips, experts), threads, table, x, self.inner, early=True)
        grid = (self.words.down.strips // self._down_strips, experts)
        down(grid, threads, table, self.inner, self.parts, early=True)

    def _matrix(self, table: torch.Tensor, x: torch.Tensor) -> None:
        up, down, shape = self.words.up, self.words.down, self.table_shape
        rows = 16 if self._tokens <= 64 else 64
        row_blocks = -(-self._tokens // rows)
        common: dict[str, Any] = {
            **self._places(), "BITS": up.bits, "P": _MATRIX_ROWS[up.bits], "M": rows,
            "DOT": tl.bfloat16 if x.is_cuda else tl.float32,
        }  # fmt: skip
        strips = next(n for n in (4, 2, 1) if up.strips % n == 0)
        matrix.up_matrix[(up.strips // strips, shape.experts, row_blocks)](
            table, x, self.inner, self.shape.hidden, self.shape.intermediate, self._top_k,
            ROWS=up.rows, SCALE_WORDS=up.scale_words, STRIP_WORDS=up.strip_words,
            ACTIVATION=_ACTIVATIONS[self.shape.activation], STRIPS=strips, num_warps=4, **common,
        )  # fmt: skip
        strips = next(n for n in (4, 2, 1) if down.strips % n == 0)
        matrix.down_matrix[(down.strips // strips, shape.experts, row_blocks)](
            table, self.inner, self.parts, self.shape.hidden, self.shape.intermediate,
            ROWS=down.rows, SCALE_WORDS=down.scale_words, STRIP_WORDS=down.strip_words,
            DOWN_AT=self.words.down_offset, STRIPS=strips, num_warps=4, **common,
        )  # fmt: skip
