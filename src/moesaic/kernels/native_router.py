"""Norm and router of a few tokens in one native call: as separate operations they take longer to
start than to do. For a single token even making tensors does, so those are made in advance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from moesaic.core.routing import UNUSED, LayerRouting
from moesaic.kernels import _native
from moesaic.kernels.native import VALUES

MOST_TOKENS = 4  # beyond, matrix products pay
KEPT_STEPS = 4  # how long a single token's routing stays as it is
_UNTOLD = np.empty((0, 0), dtype=np.float32)

ChoiceT = TypeVar("ChoiceT")
MakeChoice = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], ChoiceT
]


class Routing(Generic[ChoiceT]):
    """What a router said, and where that lies in memory."""

    __slots__ = ("_weights", "addresses", "choice", "hidden", "told")

    def __init__(
        self,
        layer: int,
        stream: torch.Tensor,
        experts: int,
        top_k: int,
        make_choice: MakeChoice[ChoiceT],
        used: int | None = None,
    ) -> None:
        """`used` experts of a single token are written, the first columns; the others are padding
        for good."""
        tokens = len(stream)
        self.hidden = torch.empty_like(stream)  # normalised
        ids = torch.full((tokens, top_k), UNUSED, dtype=torch.int64)
        weights = torch.zeros((tokens, top_k), dtype=torch.float32)
        scores, preference = torch.empty((2, tokens, experts), dtype=torch.float32)
        counts = None if used is None else torch.tensor([used])
        self.choice = make_choice(ids, weights, scores, preference, counts)
        parts = (self.hidden, ids, weights, scores, preference)
        self.addresses = tuple(part.data_ptr() for part in parts)
        chosen, self._weights = ids.numpy(), weights.numpy()
        self.told = LayerRouting(  # the experts alone
            layer,
            chosen,
            _UNTOLD,
            chosen,
            _UNTOLD,
            counts=None if counts is None else counts.numpy(),
        )

    def replace(self, experts: NDArray[np.int64], weights: NDArray[np.float32]) -> None:
        """Somebody else has chosen, as many experts as the router had."""
        self.told.experts[...] = experts
        self._weights[...] = weights


class NativeRouter(Generic[ChoiceT]):
    """One layer's norm, gate and rule. The tensors must be contiguous and of one dtype."""

    def __init__(
        self,
        layer: int,
        norm: torch.Tensor,
        eps: float,
        gate: torch.Tensor,
        bias: torch.Tensor | None,
        router: Callable[[int], _native.Router],
        top_k: int,
        make_choice: MakeChoice[ChoiceT],
    ) -> None:
        """`router(k)` makes the rule with so many experts per token."""
        self._kept = (norm, gate, bias)  # their memory is used
        self._dtype, self._value = gate.dtype, VALUES[gate.dtype]
        self._router, self._top_k, self._eps = router, top_k, eps
        self._routes = {top_k: router(top_k).route}
        self._experts, self._width = gate.shape
        self._make = (layer, self._experts, top_k, make_choice)
        bias_at = 0 if bias is None else bias.data_ptr()
        self._weights_at = (norm.data_ptr(), gate.data_ptr(), bias_at)
        self._single: dict[int | None, list[Routing[ChoiceT]]] = {}  # by experts used
        self._turn = 0

    def takes(self, stream: torch.Tensor, counts: torch.Tensor | None = None) -> bool:
        """Where several tokens may use fewer than top-k, rows are padded: not done natively."""
        most = MOST_TOKENS if counts is None else 1
        return len(stream) <= most and stream.dtype == self._dtype and stream.is_contiguous()

    def __call__(self, stream: torch.Tensor, used: int | None = None) -> Routing[ChoiceT]:
        """Of a single token, good until it was called `KEPT_STEPS` times more. It may use fewer
        than top-k experts: the rule with that k then writes the first columns."""
        tokens = len(stream)
        routing = self._next(used) if tokens == 1 else self._new(stream)
        norm, gate, bias = self._weights_at
        self._route(used)(
            stream.data_ptr(),
            norm,
            gate,
            bias,
            self._value,
            tokens,
            self._width,
            self._eps,
            *routing.addresses,
        )
        return routing

    def _route(self, used: int | None) -> Callable[..., None]:
        top_k = self._top_k if used is None else used
        if top_k not in self._routes:
            self._routes[top_k] = self._router(top_k).route
        return self._routes[top_k]

    def _next(self, used: int | None) -> Routing[ChoiceT]:
        if used not in self._single:
            one = torch.empty((1, self._width), dtype=self._dtype)
            self._single[used] = [self._new(one, used) for _ in range(KEPT_STEPS)]
        self._turn = (self._turn + 1) % KEPT_STEPS
        return self._single[used][self._turn]

    def _new(self, stream: torch.Tensor, used: int | None = None) -> Routing[ChoiceT]:
        layer, experts, top_k, make_choice = self._make
        return Routing(layer, stream, experts, top_k, make_choice, used)
