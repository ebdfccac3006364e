"""From "which experts each token wants" to "which tokens each expert gets", and the sum back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from moesaic.kernels.base import ExpertKernel, ExpertShape


class Group(NamedTuple):
    """The tokens of one expert: their rows, and the weight each gives it."""

    expert: int
    tokens: torch.Tensor  # [n]
    weights: torch.Tensor  # [n]


def group_by_expert(experts: torch.Tensor, weights: torch.Tensor) -> Iterator[Group]:
    """Groups in the order of the experts' numbers, rows ascending, so that sums repeat to the
    bit. `experts` and `weights` are [tokens, k]; an expert nobody wants has no group."""
    top_k = experts.shape[1]
    flat, flat_weights = experts.reshape(-1), weights.reshape(-1)
    order = torch.argsort(flat, stable=True)
    start = 0
    for expert, count in enumerate(torch.bincount(flat).tolist()):
        if count:
            chosen = order[start : start + count]
            yield Group(expert, chosen // top_k, flat_weights[chosen])
            start += count


def routed_sum(
    kernel: ExpertKernel,
    shape: ExpertShape,
    block_of: Callable[[int], torch.Tensor],
    hidden: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Every token's experts, scaled by their weights and added: fp32 [tokens, hidden].
    `block_of` gives the packed block of an expert."""
    out = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
    for group in group_by_expert(experts, weights):
        block = block_of(group.expert)
        kernel.compute(shape, block, hidden, group.tokens, group.weights, out)
    return out
