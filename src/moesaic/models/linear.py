"""A matrix and perhaps a bias."""

from __future__ import annotations

from typing import NamedTuple

import torch

from moesaic.kernels.products import linear


class Linear(NamedTuple):
    weight: torch.Tensor  # [out, in]
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)
