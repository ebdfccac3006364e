"""How queries and keys are normalised and turned, for the native code that does it; a network
names both where there is no native code, too."""

from __future__ import annotations

from typing import NamedTuple

import torch


class HeadNorms(NamedTuple):
    """Weights of the norms, over every head or (`whole`) over all heads of a token."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float
    whole: bool


class Angles(NamedTuple):
    """The angles of every token: fp32 [tokens, dim / 2]. The first `dim` values of a head are
    turned, in pairs of neighbours (`interleaved`) or half of `dim` apart."""

    cos: torch.Tensor
    sin: torch.Tensor
    dim: int
    interleaved: bool
