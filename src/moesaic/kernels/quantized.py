"""Experts stored as int8 or int4, computed in the hidden states' precision.

Weights are dequantised piece by piece, then multiplied as in the reference kernel; on one core that
takes 3 (int8) to 5 times (int4) as long as bf16 experts for one token, twice for 256. Buffers are
allocated for every piece: keeping them between calls gained nothing measurable, and without them
threads can share a kernel.

A block has these parts, each aligned to 64 bytes:

    codes of gate and up    [2 * intermediate rows]
    codes of down           [hidden rows]
    scales of gate and up   bf16 [2 * intermediate, groups of hidden]
    scales of down          bf16 [hidden, groups of intermediate]
    biases, if there are    fp32 [2 * intermediate], [hidden]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moesaic.core.errors import BrokenWeights
from moesaic.core.numa import Nodes
from moesaic.kernels.base import ExpertWeights
from moesaic.kernels.biases import biases_in, store_biases
from moesaic.kernels.products import linear
from moesaic.kernels.quantize import FORMATS, SCALE, GroupFormat, dequantize, pack_codes, quantize
from moesaic.kernels.reference import ACTIVATIONS, add_part, gated
from moesaic.kernels.torch_executor import TorchExecutor
from moesaic.model_info.expert_block import ROWS, MatrixPlace, block_bytes, lay_out
from moesaic.model_info.expert_shape import ExpertShape


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """One matrix of a block."""

    place: MatrixPlace
    form: GroupFormat

    @property
    def columns(self) -> int:
        return self.place.columns

    def codes(self, block: torch.Tensor) -> torch.Tensor:
        """int8 [rows, row_bytes], on the block's memory."""
        rows, start, width = self.place.rows, self.place.codes_at, self.form.row_bytes(self.columns)
        return block[start : start + rows * width].view(torch.int8).view(rows, width)

    def scales(self, block: torch.Tensor) -> torch.Tensor:
        """bf16 [rows, groups], on the block's memory."""
        rows, start, groups = self.place.rows, self.place.scales_at, self.form.groups(self.columns)
        part = block[start : start + rows * groups * SCALE.itemsize]
        return part.view(SCALE).view(rows, groups)


class QuantizedKernel:
    layout = ROWS

    def __init__(self, shape: ExpertShape, dtype: str, piece_weights: int = 1 << 22) -> None:
        """`piece_weights`: how many are dequantised at a time. With the default, matrices of most
        experts are one piece, and Mixtral's workspace stays at megabytes."""
        assert shape.activation in ACTIVATIONS, f"no activation {shape.activation!r}"
        self.shape = shape
        self.dtype = dtype
        self._form = FORMATS[dtype]
        self._piece_weights = piece_weights
        layout = lay_out(self._form, shape.hidden, shape.intermediate)
        self.gate_up = StoredMatrix(layout.gate_up, self._form)
        self.down = StoredMatrix(layout.down, self._form)
        self.block_bytes = block_bytes(dtype, shape.hidden, shape.intermediate, shape.bias)

    def executor(self, threads: int, nodes: Nodes = (), strict: bool = True) -> TorchExecutor:
        return TorchExecutor(self)

    def workspace(self, tokens: int) -> int:
        """One piece in fp32 and rounded to fp16, at the worst; and per token, in fp32, gathered
        rows, gate and up (twice: also before pieces are joined), their product, the result."""
        hidden, inner = self.shape.hidden, self.shape.intermediate
        piece = max(hidden, inner, min(self._piece_weights, 2 * hidden * inner))
        return 6 * piece + 4 * tokens * (4 * hidden + 6 * inner)

    def pack(self, weights: ExpertWeights, block: torch.Tensor) -> None:
        assert block.shape == (self.block_bytes,), f"a block is {self.block_bytes} bytes"
        inner = self.shape.intermediate
        self._store("gate", weights.gate, self.gate_up, slice(0, inner), block)
        self._store("up", weights.up, self.gate_up, slice(inner, 2 * inner), block)
        self._store("down", weights.down, self.down, slice(0, self.shape.hidden), block)
        store_biases(self.shape, weights.biases, block)

    def _store(
        self,
        name: str,
        matrix: torch.Tensor,
        stored: StoredMatrix,
        rows: slice,
        block: torch.Tensor,
    ) -> None:
        codes, scales = quantize(matrix, self._form)
        if not scales.isfinite().all():
            raise BrokenWeights(
                f"experts in {self.dtype} need finite weights, but an expert's {name} matrix has "
                "infinities or nan: the checkpoint is damaged or was saved from a diverged "
                "training. Get it anew, or see with bf16 experts what it computes."
            )
        stored.codes(block)[rows] = pack_codes(codes, self._form)
        stored.scales(block)[rows] = scales

    def compute(
        self,
        block: torch.Tensor,
        hidden: torch.Tensor,
        tokens: torch.Tensor | None,
        weights: torch.Tensor | float,
        out: torch.Tensor,
    ) -> None:
        x = hidden if tokens is None else hidden[tokens]
        wide, biases = self._multiply(self.gate_up, block, x).float(), biases_in(self.shape, block)
        inner = gated(self.shape, wide if biases is None else wide + biases.gate_up)
        part = self._multiply(self.down, block, inner.to(x.dtype))
        add_part(part if biases is None else part.float() + biases.down, tokens, weights, out)

    def _multiply(self, stored: StoredMatrix, block: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """x times the transposed matrix, a piece of its rows at a time."""
        rows = max(1, self._piece_weights // stored.columns)
        pieces = zip(stored.codes(block).split(rows), stored.scales(block).split(rows), strict=True)
        done = [
            linear(x, dequantize(*piece, stored.columns, stored.form, x.dtype)) for piece in pieces
        ]
        return done[0] if len(done) == 1 else torch.cat(done, dim=-1)
