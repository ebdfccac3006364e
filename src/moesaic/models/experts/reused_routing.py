"""Routing that tokens bring along instead of being routed: what the routers of an earlier pass of
the same tokens have said (see `Gate.reuse`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from moesaic.core.routing import LayerRouting
from moesaic.model_info.network import RouterRule


class LayerReuse(NamedTuple):
    """The reuse of one MoE layer. `given` [tokens]: the token uses `experts` [tokens, top-k],
    others are routed; `weighed` [tokens]: its weights are made of `scores` [tokens, top-k], the
    router's probabilities of these experts then, and not of what the router says now."""

    experts: torch.Tensor
    scores: torch.Tensor
    given: torch.Tensor
    weighed: torch.Tensor


@dataclass(frozen=True, slots=True)
class ReusedRouting:
    """The reuse of one pass: the arrays of `LayerReuse`, `experts` and `scores` with a first axis
    of layers. Experts of tokens that are routed are any valid numbers."""

    experts: torch.Tensor  # int64
    scores: torch.Tensor  # fp32
    given: torch.Tensor  # bool
    weighed: torch.Tensor  # bool

    @property
    def complete(self) -> bool:
        """Whether the routers need not be asked at all."""
        return bool((self.given & self.weighed).all())

    def layer(self, number: int) -> LayerReuse:
        return LayerReuse(self.experts[number], self.scores[number], self.given, self.weighed)

    def to(self, device: torch.device) -> ReusedRouting:
        parts = (self.experts, self.scores, self.given, self.weighed)
        return ReusedRouting(*(part.to(device) for part in parts))

    def replay(self, rule: RouterRule, dtype: torch.dtype) -> Callable[[int], LayerRouting]:
        """The pass as a routing to be replayed, where it is complete; `dtype` is the network's."""
        assert self.complete, "some tokens are routed"
        weights = weigh(rule, self.scores, dtype).float().cpu().numpy()
        experts, scores = self.experts.cpu().numpy(), self.scores.cpu().numpy()

        def layer(number: int) -> LayerRouting:
            chosen = experts[number]
            return LayerRouting(number, chosen, weights[number], chosen, scores[number])

        return layer


def weigh(rule: RouterRule, scores: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Weights [..., used] of experts with these scores; padding has score 0. `dtype` is that of
    the network's activations."""
    weights = scores
    if rule.normalized:
        # Sigmoid scores may all be 0; softmax's cannot.
        tiny = 1e-20 if rule.scoring == "sigmoid" else 0.0
        weights = weights / (weights.sum(dim=-1, keepdim=True) + tiny)
    if rule.factor != 1.0:
        weights = weights * rule.factor
    return weights.to(dtype) if rule.round_weights else weights
