"""Reference results in float64 from the weights as stored, and bounds on kernels' rounding errors.

Where a kernel rounds is known, and by how much at most: activations before each product to bf16
(1/256 of themselves), to int8 (half a 127th of the largest of their 256) or, for int4 in vectors,
to 16-bit codes or, of many tokens, to bytes (half a 127th of the largest of 32); int4 weights in
tiles once more to bf16; sums in fp32. These errors are independent, so their squares are added on
the way through the expert, and three times the root of what arrives is more than five standard
deviations of errors that are spread evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from moesaic.kernels.base import ExpertWeights
from moesaic.kernels.reference import ACTIVATIONS

if TYPE_CHECKING:  # where it was not built, tests are skipped
    from moesaic.kernels.native import NativeKernel

BF16, SUMS = 1 / 256, 1e-6  # largest relative errors
STEEPEST = 1.13  # slope of any activation
CHUNK = 256  # tokens of an expert that are computed together
LAST = {torch.float32: SUMS, torch.bfloat16: BF16, torch.float16: 1 / 2048}


class Estimate(NamedTuple):
    value: torch.Tensor
    square: torch.Tensor  # of its error

    def tolerance(self, out: torch.dtype = torch.float32) -> torch.Tensor:
        return 3 * self.square.sqrt() + LAST[out] * self.value.abs() + 1e-7

    def used(self, got: torch.Tensor) -> float:
        """Error over tolerance of the worst value; infinite for NaN."""
        share = (got.double() - self.value).abs() / self.tolerance(got.dtype)
        return float(share.nan_to_num(nan=torch.inf).max()) if got.numel() else 0.0


class Rounding(NamedTuple):
    group: int  # activations that share a step
    step: float  # its half, relative to the group's largest
    weights: float  # relative error of a weight

    def squares(self, x: torch.Tensor) -> torch.Tensor:
        """Squared errors of activations."""
        columns = x.shape[1]
        filled = torch.nn.functional.pad(x.abs(), (0, -columns % self.group))
        largest = filled.unflatten(1, (-1, self.group)).amax(-1)
        return (self.step * largest.repeat_interleave(self.group, 1)[:, :columns]) ** 2


def rounding_of(kernel: NativeKernel, tokens: int) -> Rounding:
    many = 0 < kernel.tiles_from <= tokens
    if kernel.dtype == "int8":
        return Rounding(256, 1 / 254, 0.0)
    if kernel.dtype == "int4" and not many:
        return Rounding(32, 1 / 65024, 0.0)
    if kernel.dtype == "int4" and kernel.isa != "amx":
        return Rounding(32, 1 / 254, 0.0)
    return Rounding(1, BF16, BF16 if kernel.dtype == "int4" else 0.0)


def expected_expert(kernel: NativeKernel, block: torch.Tensor, hidden: torch.Tensor) -> Estimate:
    weights = kernel.unpack(block)
    exact = ExpertWeights(weights.gate.double(), weights.up.double(), weights.down.double())
    parts = [
        _chunk(kernel, exact, rows.double(), rounding_of(kernel, len(rows)))
        for rows in hidden.split(CHUNK)
    ]
    return Estimate(torch.cat([p.value for p in parts]), torch.cat([p.square for p in parts]))


def expected_layer(
    kernel: NativeKernel,
    blocks: Sequence[torch.Tensor],
    experts: Sequence[int],
    hidden: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
) -> Estimate:
    """The plain sum over the given experts and the tokens routed to them."""
    value = torch.zeros(hidden.shape, dtype=torch.float64)
    square = torch.zeros_like(value)
    for expert in experts:
        rows, ranks = (ids == expert).nonzero(as_tuple=True)
        if not len(rows):
            continue
        scale = weights[rows, ranks].double()[:, None]
        part = expected_expert(kernel, blocks[expert], hidden[rows])
        value.index_add_(0, rows, scale * part.value)
        # Of a token that names the expert twice, both errors are the same.
        error = torch.zeros_like(value).index_add_(0, rows, scale.abs() * part.square.sqrt())
        square += error**2
    return Estimate(value, square)


def _chunk(
    kernel: NativeKernel, weights: ExpertWeights, x: torch.Tensor, rounding: Rounding
) -> Estimate:
    errors = rounding.squares(x)
    gate = _product(weights.gate, x, errors, rounding)
    up = _product(weights.up, x, errors, rounding)
    act = ACTIVATIONS[kernel.shape.activation](gate.value)
    inner = act * up.value
    square = STEEPEST**2 * gate.square * (up.value**2 + up.square)
    square += act**2 * up.square + (SUMS * inner) ** 2 + rounding.squares(inner)
    return _product(weights.down, inner, square, rounding)


def _product(
    matrix: torch.Tensor, x: torch.Tensor, errors: torch.Tensor, rounding: Rounding
) -> Estimate:
    own = SUMS**2 + rounding.weights**2
    return Estimate(x @ matrix.T, (errors + own * x**2) @ (matrix**2).T)
