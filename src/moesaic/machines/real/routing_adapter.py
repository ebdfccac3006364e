"""Converts a model's router output (torch) into the brain's `LayerRouting` (numpy)."""

from __future__ import annotations

import numpy as np
import torch

from moesaic.core.routing import Forecast, LayerRouting
from moesaic.models.experts.expert_service import RoutedTokens
from moesaic.models.experts.gate_bank import GateBank
from moesaic.models.experts.router import Choice

_NO_SCORES = np.empty((0, 0), dtype=np.float32)


class RoutingAdapter:
    """A routing has `ranks` experts per token, the chosen ones first (0: only those, without
    weights, where nothing is decided); with `gates`, later layers can be forecast."""

    def __init__(self, ranks: int, gates: GateBank | None = None) -> None:
        self._ranks, self._gates = ranks, gates

    @property
    def gates(self) -> GateBank | None:
        return self._gates

    @property
    def ranks(self) -> int:
        return self._ranks

    def rank_at_least(self, ranks: int) -> None:
        """Rank at least so many experts from now on, whichever policies decide."""
        self._ranks = max(self._ranks, ranks)

    def rank(self, ranks: int) -> None:
        """Rank exactly so many from now on, at least as many as the policies look at."""
        self._ranks = ranks

    def routing(self, routed: RoutedTokens, step: int = 0) -> LayerRouting:
        choice = routed.choice
        counts = None if choice.counts is None else choice.counts.numpy()
        if self._ranks == 0:
            if routed.native is not None:
                return routed.native.layer_routing.at_step(step)
            experts = choice.experts.numpy()
            return LayerRouting(
                routed.layer, experts, _NO_SCORES, experts, _NO_SCORES, (), counts, step
            )
        experts = choice.experts.numpy().copy()  # the router may use its tensors again
        weights = choice.weights.float().numpy().copy()
        ranked, scores = ranked_experts(choice, self._ranks)
        return LayerRouting(
            routed.layer, experts, weights, ranked.numpy(), scores.numpy(), (), counts, step
        )

    def can_forecast(self, layer: int) -> bool:
        return self._gates is not None and self._ranks > 0 and self._gates.depth(layer, 1) > 0

    def forecasts(self, routed: RoutedTokens, depth: int, step: int) -> tuple[Forecast, ...]:
        """What the gates of up to `depth` later layers say to the residual as it is now."""
        assert self._gates is not None, "there are no gates to ask"
        depth = self._gates.depth(routed.layer, depth)
        return self._gates.forecasts(routed.layer, depth, self._ranks, routed.residual, step)


def chosen_by(routing: LayerRouting, like: Choice) -> Choice:
    """The router output that a replayed routing stands for."""
    experts = torch.from_numpy(np.ascontiguousarray(routing.experts, dtype=np.int64))
    weights = torch.from_numpy(np.ascontiguousarray(routing.weights, dtype=np.float32))
    counts = None if routing.counts is None else torch.from_numpy(routing.counts)
    return Choice(experts, weights.to(like.weights.dtype), like.scores, like.preference, counts)


def ranked_experts(choice: Choice, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The chosen experts, then the next best; no expert twice, also with ties."""
    experts = choice.experts
    worst = torch.finfo(choice.preference.dtype).min  # excluded groups come before the chosen
    others = choice.preference.clamp(min=worst)
    if choice.counts is not None:
        experts = _without_padding(experts, choice.counts, others)
    others = others.scatter(1, experts, float("-inf"))
    following = torch.topk(others, ranks - experts.shape[1], dim=-1).indices
    experts = torch.cat((experts, following), dim=1)
    return experts, choice.scores.gather(1, experts)


def _without_padding(
    experts: torch.Tensor, counts: torch.Tensor, preference: torch.Tensor
) -> torch.Tensor:
    """[tokens, k] without `UNUSED`: from `counts` on the next best of each token stand there. No
    shape depends on values, so that a GPU need not be waited for."""
    top_k = experts.shape[1]
    ranks = torch.arange(top_k, device=counts.device)
    used = ranks < counts[:, None]
    taken = torch.zeros_like(preference).scatter_add(
        1, experts.clamp(min=0), used.to(preference.dtype)
    )
    following = torch.topk(preference.masked_fill(taken > 0, float("-inf")), top_k).indices
    at = (ranks - counts[:, None]).clamp(min=0)
    return torch.where(used, experts, following.gather(1, at))
