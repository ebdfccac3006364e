"""A matrix and perhaps a bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from moesaic.kernels.products import linear
from moesaic.kernels.quantized_linear import QuantizedWeight

if TYPE_CHECKING:
    from moesaic.kernels.native_linear import DenseRunner, PackedWeight
    from moesaic.kernels.quantized_linear import DenseQuantizer


class Linear(NamedTuple):
    """A linear layer. Where `packed` has the values, `weight` is without memory, on torch's meta
    device."""

    weight: torch.Tensor  # [out, in]
    bias: torch.Tensor | None = None
    packed: PackedWeight | QuantizedWeight | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed is not None:
            return self.packed(x, self.bias)
        return linear(x, self.weight, self.bias)

    @property
    def native(self) -> PackedWeight | None:
        """The packed weight, where the native kernels multiply it."""
        return None if isinstance(self.packed, QuantizedWeight) else self.packed

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


def together(linears: Sequence[Linear], x: torch.Tensor) -> list[torch.Tensor]:
    """Projections of the same inputs: natively packed ones in one call."""
    native = [packed for packed in (each.native for each in linears) if packed is not None]
    if len(native) < len(linears):
        return [each(x) for each in linears]
    return native[0].runner.products(x, native, [each.bias for each in linears])
