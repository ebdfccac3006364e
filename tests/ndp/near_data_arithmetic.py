"""The arithmetic of a DIMM's compute unit, in torch: what its 16-bit multipliers, adder tree and
activation units give for an expert. Slow; for tokens from a simulated machine.

A multiplier adds shifted copies of a 16-bit weight, one bit of an FP16 activation per cycle, so a
product is exact: two significands of at most 11 bits fit in fp32's 24. All multipliers' values of
one round are added pairwise by the tree, rounds one after another, in fp32; a finished sum is
rounded to FP16. Activation units round to FP16 after every operation. FP16's range holds: larger
than 65504 is infinite."""

from __future__ import annotations

import torch

from moesaic.kernels.reference import ReferenceKernel, add_part, block_views

ACTIVATION = torch.float16
ALL = slice(None)
WIDTH = 256 * 8  # values that a round multiplies: TriMoE's 256 multipliers of 8


class NearDataArithmetic:
    """Computes from blocks that the reference kernel has packed."""

    def __init__(self, kernel: ReferenceKernel, width: int = WIDTH) -> None:
        assert width & (width - 1) == 0, "an adder tree has a power of two of leaves"
        assert kernel.dtype in ("bf16", "fp16"), "units multiply 16-bit weights"
        assert kernel.shape.activation == "silu", "units compute silu"
        assert kernel.shape.unusual is None, "units know plain experts"
        self._kernel, self._width = kernel, width

    def compute(
        self,
        block: torch.Tensor,
        hidden: torch.Tensor,
        tokens: torch.Tensor | None,
        weights: torch.Tensor | float,
        out: torch.Tensor,
        width: slice = ALL,
    ) -> None:
        """As `ExpertKernel.compute`: `out[tokens] += weights * expert(hidden[tokens])`; the sum
        over experts, and over the parts of one, is the host's, in fp32."""
        rows = hidden if tokens is None else hidden[tokens]
        add_part(self.expert(block, rows, width), tokens, weights, out)

    def expert(self, block: torch.Tensor, rows: torch.Tensor, width: slice = ALL) -> torch.Tensor:
        """down(silu(gate(x)) * up(x)) of every row, in FP16; or what a part of the expert's
        intermediate width adds to it."""
        kernel = self._kernel
        gate_up, down = block_views(kernel.shape, kernel.values(block))
        if width != ALL:
            both = gate_up.view(2, kernel.shape.intermediate, kernel.shape.hidden)
            gate_up, down = both[:, width].flatten(0, 1), down[:, width]
        results = []
        for row in rows.to(ACTIVATION):
            gate, up = self._gemv(gate_up, row).chunk(2)
            results.append(self._gemv(down, silu(gate) * up))
        return torch.stack(results)

    def _gemv(self, matrix: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        """[rows] of FP16: products are exact in fp32, and their sum is the tree's."""
        products = matrix.float() * vector.float()
        missing = -products.shape[1] % self._width
        rounds = torch.nn.functional.pad(products, (0, missing)).view(len(matrix), -1, self._width)
        total = torch.zeros(len(matrix))
        for number in range(rounds.shape[1]):
            total = total + tree_sum(rounds[:, number])
        return total.to(ACTIVATION)


def silu(x: torch.Tensor) -> torch.Tensor:
    """x / (1 + exp(-x)), every step rounded to FP16: where exp overflows, the result is 0."""
    assert x.dtype == ACTIVATION
    grown = torch.exp(-x.float()).to(ACTIVATION)
    below = (1 + grown.float()).to(ACTIVATION)
    return (x.float() / below.float()).to(ACTIVATION)


def tree_sum(values: torch.Tensor) -> torch.Tensor:
    """The last axis, neighbours first."""
    while values.shape[-1] > 1:
        values = values[..., ::2] + values[..., 1::2]
    return values[..., 0]
