"""Which experts a token goes to, and with what weight: every rule the families have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import functional

from moesaic.core.routing import UNUSED
from moesaic.kernels.products import linear
from moesaic.model_info.network import RouterRule
from moesaic.models.experts.reused_routing import LayerReuse, weigh
from moesaic.models.token_batch import finite_sums


class Choice(NamedTuple):
    """What a router said: best expert first. `scores` are all experts' probabilities;
    `preference` is what the choice was made by (scores, bias added, excluded groups masked), so
    ranking by it extends `experts` beyond top-k. Where tokens use fewer than k, `counts` says how
    many; from there on `experts` hold `UNUSED` and `weights` 0."""

    experts: torch.Tensor  # int64 [tokens, k]
    weights: torch.Tensor  # [tokens, k]
    scores: torch.Tensor  # fp32 [tokens, experts]
    preference: torch.Tensor  # fp32 [tokens, experts]
    counts: torch.Tensor | None = None  # int64 [tokens], 1 to k; None: every token uses all k


@dataclass(frozen=True, slots=True)
class Router:
    rule: RouterRule
    weight: torch.Tensor  # [experts, hidden]
    bias: torch.Tensor | None = None  # for choosing: fp32 [experts]
    logit_bias: torch.Tensor | None = None  # on the product: [experts]

    def __call__(
        self,
        hidden: torch.Tensor,
        counts: torch.Tensor | None = None,
        reuse: LayerReuse | None = None,
    ) -> Choice:
        logits = self._logits(hidden)
        choice = choose(self.rule, logits, self.bias, counts, reuse)
        # Scores hide infinite logits: such a token has no weights.
        sums = finite_sums(logits)[:, None]
        if self.bias is not None:
            sums = sums + self.bias.sum()
        weights = torch.add(choice.weights, sums, alpha=0)  # plus 0, or NaN
        # Also where logits are in fp32 although the network is not.
        dtype = hidden.dtype if self.rule.round_weights else choice.weights.dtype
        return choice._replace(weights=weights.to(dtype))

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.rule.in_fp32:
            assert self.logit_bias is None, "no family has both"
            return functional.linear(hidden.float(), self.weight.float())
        return linear(hidden, self.weight, self.logit_bias)


def choose(
    rule: RouterRule,
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    counts: torch.Tensor | None = None,
    reuse: LayerReuse | None = None,
) -> Choice:
    """Logits [..., experts] to experts and weights. With `counts` (logits are [tokens, experts]
    then) weights are what a model with that top-k would give: normalised over the used experts.
    With `reuse` some tokens have their experts already, and maybe their scores."""
    if rule.scoring == "sigmoid":
        scores = logits.float().sigmoid()
    else:
        scores = logits.softmax(dim=-1, dtype=torch.float32)
    preference = scores if bias is None else scores + bias
    if rule.groups > 1:
        preference = _limit_to_best_groups(rule, preference)
    # Where groups are limited, scores outside them count as what the mask made of them.
    chosen, experts = torch.topk(preference, rule.top_k, dim=-1)
    weights = chosen if bias is None else scores.gather(-1, experts)
    if reuse is not None:
        experts, weights = _reused(reuse, experts, weights, scores)
    if counts is not None:
        unused = torch.arange(rule.top_k, device=counts.device) >= counts[:, None]
        experts, weights = experts.masked_fill(unused, UNUSED), weights.masked_fill(unused, 0.0)
    return Choice(experts, weigh(rule, weights, logits.dtype), scores, preference, counts)


def _reused(
    reuse: LayerReuse, experts: torch.Tensor, weights: torch.Tensor, scores: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    given, weighed = reuse.given[:, None], reuse.weighed[:, None]
    theirs = torch.where(weighed, reuse.scores, scores.gather(-1, reuse.experts))
    return torch.where(given, reuse.experts, experts), torch.where(given, theirs, weights)


def _limit_to_best_groups(rule: RouterRule, preference: torch.Tensor) -> torch.Tensor:
    grouped = preference.unflatten(-1, (rule.groups, -1))
    if rule.group_score == "max":
        group_scores = grouped.amax(dim=-1)
    else:
        group_scores = grouped.topk(2, dim=-1).values.sum(dim=-1)
    best = group_scores.topk(rule.top_groups, dim=-1).indices
    allowed = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(-1, best, True)
    excluded = 0.0 if rule.scoring == "softmax" else float("-inf")
    return grouped.masked_fill(~allowed[..., None], excluded).flatten(-2)
