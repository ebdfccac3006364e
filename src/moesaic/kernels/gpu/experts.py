"""Launches of the GPU's expert kernels: two per layer, whatever the number of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from moesaic.kernels.gpu import activations
from moesaic.kernels.gpu.driver import SHARED_BYTES, Function
from moesaic.kernels.gpu.modules import load_module
from moesaic.kernels.gpu.table import TableShape
from moesaic.model_info.expert_block import FORMATS, SCALE_BYTES, STRIP, TILES, aligned
from moesaic.model_info.expert_shape import ExpertShape

_WARPS = 4  # of a block with several rows
_ALL, _THERE, _ARRIVING = range(3)  # parts of a table
_SUMS_BYTES = 2 << 10  # of a block's shared memory, for its warps' sums
_MIN_BLOCKS = {1: 5, 2: 4, 4: 3}  # by row tiles: blocks of several rows per multiprocessor


def supports(shape: ExpertShape, dtype: str) -> bool:
    """Whole words only."""
    return dtype in BITS and activations.computes(shape)


class Tuning(NamedTuple):
    """How the one-row kernels are cut: threads of a block, blocks that must fit a multiprocessor
    together, 16-byte reads that a thread has under way per strip (of gate and up, of down), strips
    of the down matrix that a block computes."""

    threads: int = 256
    min_blocks: int = 4
    up_unroll: int = 4
    down_unroll: int = 4
    down_strips: int = 2

    @classmethod
    def of(cls, dtype: str) -> Tuning:
        """Rows of four bits are so short that with more reads under way most warps have none, and
        their scales take registers."""
        return cls(up_unroll=2, down_unroll=1) if dtype == "int4" else cls()


class GpuExperts:
    """Computes the experts of a table for up to so many tokens. Its buffers stay where they are,
    so launches can be captured in a graph."""

    def __init__(
        self, shape: ExpertShape, dtype: str, tokens: int, top_k: int, experts: int,
        buffers: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        """`buffers`: `inner` and `parts` of another one, for at least as many tokens."""
        assert supports(shape, dtype), f"no GPU kernel for {shape} in {dtype}"
        self.shape, self.words = shape, BlockWords(shape, dtype)
        self.table_shape = TableShape.of(tokens, top_k, experts)
        self._tokens, self._top_k = tokens, top_k
        self._tuning = Tuning.of(dtype)
        self._matrix_kernels: dict[int, tuple[Function, Function]] = {}
        pairs = tokens * top_k
        if buffers is None:
            inner = torch.zeros(pairs, shape.intermediate, dtype=torch.bfloat16, device="cuda")
            parts = torch.zeros(pairs, shape.hidden, dtype=torch.float32, device="cuda")
            buffers = inner, parts
        self.inner, self.parts = (buffer[:pairs] for buffer in buffers)

    def launch(self, table: torch.Tensor, x: torch.Tensor, max_rows: int | None = None) -> None:
        """`parts[pair]` becomes the expert's result for the pair's token, not yet weighted, for
        all pairs in the table. x [tokens, hidden] bf16. `max_rows`: no expert has more rows; None:
        not known."""
        if self._by_vectors:
            self._vector(table, x)
        else:
            self._matrix(table, x, max_rows, _ALL)

    def launch_in_turn(
        self, table: torch.Tensor, x: torch.Tensor, between: Callable[[], None] = lambda: None
    ) -> None:
        """The same for a table whose last experts arrive while the first are computed: those that
        are there are done with when the others' turn comes, and `between` is launched then."""
        self._matrix(table, x, None, _THERE)
        between()
        self._matrix(table, x, None, _ARRIVING)

    def _defines(self) -> dict[str, int]:
        return {
            "HIDDEN": self.shape.hidden, "INTERMEDIATE": self.shape.intermediate,
            "TOP_K": self._top_k, "BITS": self.words.up.bits,
            "ACTIVATION": activations.number(self.shape),
        }  # fmt: skip

    @cached_property
    def _one_row(self) -> tuple[Function, Function]:
        tuning = self._tuning
        defines = {
            **self._defines(), "THREADS": tuning.threads, "MIN_BLOCKS": tuning.min_blocks,
            "UP_UNROLL": tuning.up_unroll, "DOWN_UNROLL": tuning.down_unroll,
            "DOWN_COUNT": self._down_strips,
        }  # fmt: skip
        module = load_module("experts", defines)
        return module.function("up_vector"), module.function("down_vector")

    @property
    def _by_vectors(self) -> bool:
        """One token, whose inputs and activations a block has room for; else the tensor cores do
        it, which read them in pieces."""
        return self._tokens == 1 and all(
            4 * (matrix.rows * matrix.per_word + matrix.rows) + _SUMS_BYTES <= SHARED_BYTES
            for matrix in (self.words.up, self.words.down)
        )

    @property
    def _down_strips(self) -> int:
        wanted = self._tuning.down_strips
        return wanted if self.words.down.strips % wanted == 0 else 1

    def _vector(self, table: torch.Tensor, x: torch.Tensor) -> None:
        up, down = self._one_row
        experts, threads = self.table_shape.experts, self._tuning.threads
        up((self.words.up.strips, experts), threads, table, experts, x, self.inner, early=True)
        grid = (self.words.down.strips // self._down_strips, experts)
        down(grid, threads, table, experts, self.inner, self.parts, early=True)

    def _matrix(
        self, table: torch.Tensor, x: torch.Tensor, max_rows: int | None, part: int
    ) -> None:
        experts, tiles = self.table_shape.experts, self._tiles(max_rows)
        up, down = self._row_tiles(tiles)
        blocks = -(-(self._tokens if max_rows is None else max_rows) // (16 * tiles))
        grid = (blocks, -(-self.words.up.strips // _WARPS), experts)
        up(grid, 32 * _WARPS, table, experts, part, x, self.inner, early=True)
        grid = (blocks, -(-self.words.down.strips // (2 * _WARPS)), experts)
        down(grid, 32 * _WARPS, table, experts, part, self.inner, self.parts, early=True)

    def prepare(self) -> None:
        """Compile what `launch` needs where the number of rows is not known."""
        if self._by_vectors:
            assert self._one_row
        else:
            self._row_tiles(self._tiles(None))

    def _tiles(self, max_rows: int | None) -> int:
        """Times 16 rows for a block, so that most experts need one."""
        shape = self.table_shape
        typical = shape.pairs / shape.experts if max_rows is None else max_rows / 2
        return 1 if typical <= 10 else 2 if typical <= 24 else 4

    def _row_tiles(self, tiles: int) -> tuple[Function, Function]:
        """Kernels whose blocks compute so many times 16 rows."""
        if tiles not in self._matrix_kernels:
            defines = {
                **self._defines(), "ROW_TILES": tiles, "MIN_BLOCKS": _MIN_BLOCKS[tiles]
            }  # fmt: skip
            module = load_module("experts_matrix", defines)
            found = module.function("up_matrix"), module.function("down_matrix")
            self._matrix_kernels[tiles] = found
        return self._matrix_kernels[tiles]


# Where things are in a packed block, in numbers that Triton kernels take as constants.

BITS = {"bf16": 16, "int8": 8, "int4": 4}
_DTYPES = {bits: dtype for dtype, bits in BITS.items()}


@dataclass(frozen=True, slots=True)
class MatrixWords:
    """One packed matrix; sizes in 32-bit words."""

    outputs: int
    inputs: int
    bits: int

    @property
    def strips(self) -> int:
        return -(-self.outputs // STRIP)

    @property
    def per_word(self) -> int:
        return 32 // self.bits

    @property
    def rows(self) -> int:
        """Rows of 16 words in a strip, padding included."""
        tile = TILES[_DTYPES[self.bits]].inputs
        return -(-self.inputs // tile) * tile // self.per_word

    @property
    def scale_words(self) -> int:
        form = FORMATS.get(_DTYPES[self.bits])
        groups = 0 if form is None else form.groups(self.inputs)
        return aligned(groups * STRIP * SCALE_BYTES) // 4

    @property
    def strip_words(self) -> int:
        return self.scale_words + self.rows * STRIP


@dataclass(frozen=True, slots=True)
class BlockWords:
    """A whole expert: strips of gate and up in turns, then those of down."""

    shape: ExpertShape
    dtype: str

    @property
    def up(self) -> MatrixWords:
        return MatrixWords(self.shape.intermediate, self.shape.hidden, BITS[self.dtype])

    @property
    def down(self) -> MatrixWords:
        return MatrixWords(self.shape.hidden, self.shape.intermediate, BITS[self.dtype])

    @property
    def down_offset(self) -> int:
        return 2 * self.up.strips * self.up.strip_words

    @property
    def bytes(self) -> int:
        return 4 * (self.down_offset + self.down.strips * self.down.strip_words)
