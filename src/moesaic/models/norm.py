"""Root-mean-square normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from moesaic.kernels.native_linear import DenseRunner


class RmsNorm(NamedTuple):
    weight: torch.Tensor  # in the dtype of what it scales, or in fp32
    eps: float
    dense: DenseRunner | None = None  # whose workers normalise many rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise over the last dimension, in fp32; rounded before the weight, as the stock
        models do, and after it where the weight is in fp32 itself."""
        if self.dense is not None and self.dense.rows.takes(x, self.weight):
            return self.dense.rows.norm(x, self.weight, self.eps)
        scaled = functional.rms_norm(x.float(), self.weight.shape, eps=self.eps)
        if self.weight.dtype is not x.dtype:
            return (self.weight * scaled).to(x.dtype)
        return self.weight * scaled.to(x.dtype)

    def after_adding(
        self, x: torch.Tensor, added: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x + added, and the norm of that."""
        if added is None:
            return x, self(x)
        if self.dense is not None and self.dense.rows.takes_sum(x, added, self.weight):
            return self.dense.rows.add_and_norm(x, added, self.weight, self.eps)
        total = x + added
        return total, self(total)
