"""Grouping tokens by expert, and the weighted sum of the experts' results."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from moesaic.core.routing import UNUSED
from moesaic.kernels.base import ExpertKernel


class Group(NamedTuple):
    """The tokens of one expert: their rows (None: all of them), and their routing weights (a plain
    number where there is only one token)."""

    tokens: torch.Tensor | None  # [load]
    weights: torch.Tensor | float  # fp32 [load, 1]
    load: int  # number of tokens


def group_by_expert(experts: torch.Tensor, weights: torch.Tensor) -> dict[int, Group]:
    """Groups in the order of the experts' numbers (of their ranks for a single token), rows
    ascending, so that sums repeat to the bit. `experts` and `weights` are [tokens, k]; `UNUSED`
    entries are left out, and an expert without tokens has no group."""
    if len(experts) == 1:  # decoding one sequence: nothing to gather
        (numbers,), (scales,) = experts.tolist(), weights.tolist()
        pairs = zip(numbers, scales, strict=True)
        return {e: Group(None, w, 1) for e, w in pairs if e != UNUSED}
    top_k = experts.shape[1]
    flat, flat_weights = experts.reshape(-1), weights.reshape(-1)
    order = torch.argsort(flat, stable=True)
    rows, sorted_weights = order // top_k, flat_weights[order].float()[:, None]
    unused, *counts = torch.bincount(flat - UNUSED, minlength=1).tolist()  # padding is sorted first
    groups, start = {}, unused
    for expert, count in enumerate(counts):
        if count:
            chosen = slice(start, start + count)
            groups[expert] = Group(rows[chosen], sorted_weights[chosen], count)
            start += count
    return groups


def routed_sum(
    kernel: ExpertKernel,
    block_of: Callable[[int], torch.Tensor],
    hidden: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Every token's experts, scaled by their weights and added: fp32 [tokens, hidden].
    `block_of` gives the packed block of an expert."""
    out = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
    for expert, group in group_by_expert(experts, weights).items():
        kernel.compute(block_of(expert), hidden, group.tokens, group.weights, out)
    return out
