"""Norm and router of a few tokens in one native call: as separate operations they take longer to
start than to do.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from moesaic.kernels import _native
from moesaic.kernels.native import VALUES

MOST_TOKENS = 4  # beyond, matrix products pay


class NativeRouted(NamedTuple):
    hidden: torch.Tensor  # normalised
    experts: torch.Tensor
    weights: torch.Tensor
    scores: torch.Tensor
    preference: torch.Tensor


class NativeRouter:
    """One layer's norm, gate and rule. The tensors must be contiguous and of one dtype."""

    def __init__(
        self,
        norm: torch.Tensor,
        eps: float,
        gate: torch.Tensor,
        bias: torch.Tensor | None,
        router: _native.Router,
        top_k: int,
    ) -> None:
        self._kept = (norm, gate, bias)  # their memory is used
        self._dtype = gate.dtype
        self._router, self._eps, self._top_k = router, eps, top_k
        self._experts, self._width = gate.shape
        self._weights_at = (
            norm.data_ptr(),
            gate.data_ptr(),
            0 if bias is None else bias.data_ptr(),
        )
        self._value = VALUES[gate.dtype]

    def __call__(self, stream: torch.Tensor) -> NativeRouted:
        tokens = len(stream)
        hidden = torch.empty_like(stream)
        experts = torch.empty((tokens, self._top_k), dtype=torch.int64)
        weights = torch.empty((tokens, self._top_k), dtype=torch.float32)
        both = torch.empty((2, tokens, self._experts), dtype=torch.float32)
        norm, gate, bias = self._weights_at
        at = both.data_ptr()
        self._router.route(
            stream.data_ptr(),
            norm,
            gate,
            bias,
            self._value,
            tokens,
            self._width,
            self._eps,
            hidden.data_ptr(),
            experts.data_ptr(),
            weights.data_ptr(),
            at,
            at + 4 * tokens * self._experts,
        )
        return NativeRouted(hidden, experts, weights, both[0], both[1])

    def takes(self, stream: torch.Tensor) -> bool:
        return len(stream) <= MOST_TOKENS and stream.dtype == self._dtype and stream.is_contiguous()
