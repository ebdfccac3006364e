"""Root-mean-square normalisation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional


class RmsNorm(NamedTuple):
    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Over the last dimension, in fp32; rounded before the weight, as the stock models do."""
        scaled = functional.rms_norm(x.float(), self.weight.shape, eps=self.eps)
        return self.weight * scaled.to(x.dtype)
