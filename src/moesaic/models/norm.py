"""Root-mean-square normalisation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional


class RmsNorm(NamedTuple):
    weight: torch.Tensor  # in the dtype of what it scales, or in fp32
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Over the last dimension, in fp32; rounded before the weight, as the stock models do, and
        after it where the weight is in fp32 itself."""
        scaled = functional.rms_norm(x.float(), self.weight.shape, eps=self.eps)
        if self.weight.dtype is not x.dtype:
            return (self.weight * scaled).to(x.dtype)
        return self.weight * scaled.to(x.dtype)
