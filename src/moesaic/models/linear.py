"""A matrix and perhaps a bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from moesaic.kernels.products import linear

if TYPE_CHECKING:
    from moesaic.kernels.native_linear import DenseRunner, PackedWeight


class Linear(NamedTuple):
    """Where `packed` has the values, `weight` is without memory, on torch's meta device."""

    weight: torch.Tensor  # [out, in]
    bias: torch.Tensor | None = None
    packed: PackedWeight | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed is not None:
            return self.packed(x, self.bias)
        return linear(x, self.weight, self.bias)

    @classmethod
    def made(
        cls,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        dense: DenseRunner | None,
        part: Literal["attention", "head"] = "attention",
    ) -> Linear:
        """Packed, if something packs, in the precision of that part of the network; the given
        weight is not kept then."""
        if dense is None:
            return cls(weight, bias)
        return cls(weight.to("meta"), bias, dense.pack(weight, getattr(dense.precision, part)))


def together(linears: Sequence[Linear], x: torch.Tensor) -> list[torch.Tensor]:
    """Projections of the same inputs: packed ones in one native call."""
    packed = [each.packed for each in linears if each.packed is not None]
    if len(packed) < len(linears):
        return [each(x) for each in linears]
    return packed[0].runner.products(x, packed, [each.bias for each in linears])
