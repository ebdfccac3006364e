"""RMSNorm and router in one native call. Of a few tokens: as separate operations they take longer
to dispatch than to compute. For a single token even allocating tensors does, so its results are
preallocated, in a ring buffer. Of many tokens: on the workers that multiply packed dense weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from moesaic.core.routing import UNUSED, LayerRouting
from moesaic.kernels import _native
from moesaic.kernels.native_format import FLOAT_TYPES

if TYPE_CHECKING:
    from moesaic.kernels.native_linear import DenseRunner

MAX_TOKENS = 4  # with more, matrix products are faster
RING_SLOTS = 4  # calls after which a single token's result is overwritten
_NO_SCORES = np.empty((0, 0), dtype=np.float32)

ChoiceT = TypeVar("ChoiceT")
MakeChoice = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], ChoiceT
]


class RoutingResult(Generic[ChoiceT]):
    """A router's result, and the addresses of its tensors (`addresses` begins with the normalised
    hidden states, expert ids and weights)."""

    __slots__ = ("_weights", "addresses", "call", "choice", "hidden", "layer_routing")

    def __init__(
        self,
        layer: int,
        residual: torch.Tensor,
        experts: int,
        top_k: int,
        make_choice: MakeChoice[ChoiceT],
        counts: torch.Tensor | None = None,
    ) -> None:
        """`counts` [tokens]: experts that each token uses, the first columns; the others are
        padding."""
        tokens = len(residual)
        self.hidden = torch.empty_like(residual)  # normalised
        ids = torch.full((tokens, top_k), UNUSED, dtype=torch.int64)
        weights = torch.zeros((tokens, top_k), dtype=torch.float32)
        scores, selection = torch.empty((2, tokens, experts), dtype=torch.float32)
        self.choice = make_choice(ids, weights, scores, selection, counts)
        self.call = call = _native.RouterCall()
        call.tokens, call.hidden = residual.shape
        call.normalized, call.ids = self.hidden.data_ptr(), ids.data_ptr()
        call.weights, call.scores = weights.data_ptr(), scores.data_ptr()
        call.selection_scores = selection.data_ptr()
        self.addresses = (call.normalized, call.ids, call.weights)
        chosen, self._weights = ids.numpy(), weights.numpy()
        per_token = None if counts is None else counts.numpy()
        self.layer_routing = LayerRouting(
            layer, chosen, _NO_SCORES, chosen, _NO_SCORES, counts=per_token
        )

    def replace(self, experts: NDArray[np.int64], weights: NDArray[np.float32]) -> None:
        """Overwrite the router's choice with one of as many experts."""
        self.layer_routing.experts[...] = experts
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
        isa: int,
        config: Callable[[int], _native.RouterConfig],
        top_k: int,
        make_choice: MakeChoice[ChoiceT],
        dense: DenseRunner | None = None,
    ) -> None:
        """`config(k)` is the rule with so many experts per token. `dense`: whose workers route many
        tokens; None: no workers do."""
        self._kept = (norm, gate, bias)  # referenced: calls have their addresses
        self._dtype, self._type = gate.dtype, FLOAT_TYPES[gate.dtype]
        self._isa, self._config, self._eps, self._dense = isa, config, eps, dense
        self._rule = config(top_k)
        routes: dict[int | None, Callable[[_native.RouterCall], None]] = {}
        routes[None] = _native.Router(isa, self._rule).route
        self._routes = routes  # by the number of experts used
        self._experts, self._width = gate.shape
        self._make = (layer, self._experts, top_k, make_choice)
        bias_at = 0 if bias is None else bias.data_ptr()
        self._weights_at = (norm.data_ptr(), gate.data_ptr(), bias_at)
        self._rings: dict[int | None, list[RoutingResult[ChoiceT]]] = {}  # by experts used
        self._slot = 0

    def takes(self, residual: torch.Tensor, counts: torch.Tensor | None = None) -> bool:
        """Several tokens that may use fewer than top-k are left to torch: their rows are padded."""
        return (
            len(residual) <= (MAX_TOKENS if counts is None else 1)
            and residual.dtype == self._dtype
            and residual.is_contiguous()
        )

    def __call__(self, residual: torch.Tensor, used: int | None = None) -> RoutingResult[ChoiceT]:
        """A single token's result is valid for the next `RING_SLOTS - 1` calls. It may use fewer
        than top-k experts: the router with that k then writes the first columns."""
        result = self._next(used) if len(residual) == 1 else self._new(residual)
        result.call.residual = residual.data_ptr()
        self._routes[used](result.call)
        return result

    def _next(self, used: int | None) -> RoutingResult[ChoiceT]:
        if used not in self._rings:
            if used is not None:
                self._routes[used] = _native.Router(self._isa, self._config(used)).route
            one = torch.empty((1, self._width), dtype=self._dtype)
            counts = None if used is None else torch.tensor([used])
            self._rings[used] = [self._new(one, counts) for _ in range(RING_SLOTS)]
        self._slot = (self._slot + 1) % RING_SLOTS
        return self._rings[used][self._slot]

    def takes_many(self, residual: torch.Tensor, added: torch.Tensor | None) -> bool:
        if self._dense is None or not residual.is_contiguous():
            return False
        rows, norm = self._dense.rows, self._kept[0]
        if added is None:
            return rows.takes(residual, norm)
        return rows.takes_sum(residual, added, norm)

    def many(
        self, residual: torch.Tensor, counts: torch.Tensor | None, added: torch.Tensor | None
    ) -> tuple[torch.Tensor, RoutingResult[ChoiceT]]:
        """Route residual + added, which is returned, too. Tokens may use fewer than top-k
        experts."""
        assert self._dense is not None, "only what it takes"
        more = _native.ManyTokens()
        if counts is not None:
            counts = counts.to(torch.int64).contiguous()
            if len(counts) != len(residual):
                raise ValueError("every token has a number of experts")
            more.counts = counts.data_ptr()
        total = residual
        if added is not None:
            total = torch.empty_like(residual)
            more.added, more.sum = added.data_ptr(), total.data_ptr()
        result = self._new(residual, counts)
        result.call.residual = residual.data_ptr()
        self._dense.rows.runner.route(self._rule, result.call, more)
        return total, result

    def _new(
        self, residual: torch.Tensor, counts: torch.Tensor | None = None
    ) -> RoutingResult[ChoiceT]:
        layer, experts, top_k, make_choice = self._make
        result = RoutingResult(layer, residual, experts, top_k, make_choice, counts)
        call = result.call
        call.norm, call.gate, call.bias = self._weights_at
        call.type, call.eps = self._type, self._eps
        return result
