"""Root-mean-square normalisation."""

from __future__ import annotations

from typing import NamedTuple

import torch


class RmsNorm(NamedTuple):
    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Over the last dimension, in fp32; rounded before the weight, as the stock models do."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)
