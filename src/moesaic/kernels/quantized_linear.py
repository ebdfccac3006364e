"""Dense matrices in int8 or int4 for networks that an accelerator computes: the same codes and
scales as the native kernels' (`native_linear.py`), activations as they are.

On a GPU, bf16 rows are multiplied by the kernels of `gpu/dense.py`. Everywhere else, and in other
precisions, weights are widened a piece at a time and multiplied by PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from moesaic.core.errors import BrokenWeights
from moesaic.kernels.base import ExpertWeights
from moesaic.kernels.gpu.dense import product
from moesaic.kernels.products import linear
from moesaic.kernels.quantize import FORMATS, quantize
from moesaic.kernels.quantized_matrix import QuantizedMatrix, Scratch, pack_rows
from moesaic.kernels.reference import gated
from moesaic.model_info.dense_bytes import DensePrecision
from moesaic.model_info.dense_rows import PIECE, piece_rows
from moesaic.model_info.expert_shape import ExpertShape


class QuantizedWeight(QuantizedMatrix):
    """A matrix that multiplies, on any device."""

    __slots__ = ()

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x @ weight.T + bias, in the dtype of x."""
        rows = x.reshape(-1, self.inputs)
        if x.is_cuda and x.dtype is torch.bfloat16:
            out = product(self, rows, bias)
        else:
            out = self._by_pieces(rows, bias)
        return out.view(*x.shape[:-1], self.outputs)

    def _by_pieces(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        step = piece_rows(self.inputs, PIECE)
        parts = []
        for first in range(0, self.outputs, step):
            part = self.rows(first, first + step)
            added = None if bias is None else bias[first : first + step]
            parts.append(linear(rows, part.widened(rows.dtype), added))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedNetwork:
    """A feed-forward that every token goes through."""

    shape: ExpertShape
    gate_up: QuantizedWeight  # gate, then up
    down: QuantizedWeight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(gated(self.shape, self.gate_up(x).float()).to(x.dtype))


def stacked(weights: list[QuantizedWeight]) -> QuantizedWeight:
    """Matrices with the same inputs as one, in new memory: their rows one behind the other."""
    first = weights[0]
    first.scratch.need(sum(each.outputs for each in weights), first.inputs)
    return replace(
        first,
        codes=torch.cat([each.codes for each in weights]),
        scales=torch.cat([each.scales for each in weights]),
    )


class DenseQuantizer:
    """Packs a network's dense matrices as they are read; those in bf16 stay as they are."""

    runner = None  # nothing computes natively on the CPU

    def __init__(self, precision: DensePrecision) -> None:
        self.precision = precision
        self._scratch = Scratch()

    def pack(self, weight: torch.Tensor, dtype: str) -> QuantizedWeight | None:
        """A copy of a matrix [outputs, inputs]; None: it is not quantised."""
        if dtype not in FORMATS:
            return None
        outputs, inputs = weight.shape
        self._scratch.need(outputs, inputs)
        step, form = piece_rows(inputs, PIECE), FORMATS[dtype]
        codes, scales = [], []
        for piece in weight.split(step):
            found = quantize(piece, form)
            codes.append(pack_rows(found.codes, form))
            scales.append(found.scales)
        made = torch.cat(scales)
        if not bool(made.isfinite().all()):
            raise not_finite(dtype)
        return QuantizedWeight(torch.cat(codes), made, inputs, dtype, self._scratch)

    def pack_network(self, shape: ExpertShape, weights: ExpertWeights) -> QuantizedNetwork | None:
        dtype = self.precision.feed_forward
        gate, up, down = (
            self.pack(each, dtype) for each in (weights.gate, weights.up, weights.down)
        )
        if gate is None or up is None or down is None:
            return None
        return QuantizedNetwork(shape, stacked([gate, up]), down)


def not_finite(dtype: str) -> BrokenWeights:
    return BrokenWeights(
        f"dense weights in {dtype} need finite numbers, but a matrix has infinities or nan: the "
        "checkpoint is damaged or was saved from a diverged training. Get it anew, or see with "
        "--dense-dtype bf16 what it computes."
    )
