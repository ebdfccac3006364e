"""A matrix and perhaps a bias."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from moesaic.kernels.products import linear

if TYPE_CHECKING:
    from moesaic.kernels.native_linear import DenseRunner, PackedWeight
    from moesaic.kernels.quantized_linear import DenseQuantizer, QuantizedWeight


class Linear(NamedTuple):
    """Where `packed` has the values, `weight` is without memory, on torch's meta device."""

    weight: torch.Tensor  # [out, in]
    bias: torch.Tensor | None = None
    packed: PackedWeight | QuantizedWeight | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed is not None:
            return self.packed(x, self.bias)
        return linear(x, self.weight, self.bias)

    @classmethod
    def made(
        cls,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        dense: DenseRunner | DenseQuantizer | None,
        part: Literal["attention", "head"] = "attention",
    ) -> Linear:
        """Packed, if something packs, in the precision of that part of the network; the given
        weight is not kept then."""
        packed = None if dense is None else dense.pack(weight, getattr(dense.precision, part))
        return cls(weight if packed is None else weight.to("meta"), bias, packed)
