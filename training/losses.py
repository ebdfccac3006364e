"""What a step minimises: surprise, uneven use of experts, large router scores, and leaning on a
token's first expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

from training.network import Routing
from training.recipe import Learning


class Losses(NamedTuple):
    text: torch.Tensor  # nats per counted token
    balance: torch.Tensor  # 1 where all experts of all layers get as much
    router_z: torch.Tensor
    concentration: torch.Tensor  # 1 / k where all chosen experts weigh the same
    total: torch.Tensor


def surprise(logits: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Mean over tokens, each as much as it counts ([rows, length]; the first is not predicted:
    every position is asked for the next one)."""
    flat = logits[:, :-1].flatten(0, 1).float()
    each = functional.cross_entropy(flat, tokens[:, 1:].flatten(), reduction="none")
    weights = counts[:, 1:].flatten()
    return (each * weights).sum() / weights.sum().clamp(min=1e-6)


def shares(chosen: torch.Tensor, experts: int) -> torch.Tensor:
    """[experts]: each one's part of all choices. Compared rather than counted: a GPU's threads
    would queue for so few counters."""
    numbers = torch.arange(experts, device=chosen.device)
    return (chosen.flatten().unsqueeze(1) == numbers).float().mean(dim=0)


def unevenness(routing: Routing) -> torch.Tensor:
    """The load-balancing loss of Switch Transformers (equation 4), over the whole step: experts
    may specialise in prose or in problems as long as the mixture keeps all of them busy."""
    experts = routing.scores.shape[-1]
    likely = routing.scores.softmax(dim=-1).mean(dim=0)
    return experts * (shares(routing.chosen, experts) * likely).sum()


def leaning(routing: Routing) -> torch.Tensor:
    """How far one of a token's experts outweighs the others: the sum of their squared shares.

    Left alone, a small router gives half of the weight to its first choice, and the others are
    hardly missed. In large models they are: gpt-oss's first two of four carry 0.62 of the weight,
    where this model's carried 0.72."""
    shares_of_chosen = routing.scores.gather(1, routing.chosen).softmax(dim=-1)
    return shares_of_chosen.square().sum(dim=-1).mean()


def losses(text: torch.Tensor, routings: Sequence[Routing], learning: Learning) -> Losses:
    balance = torch.stack([unevenness(routing) for routing in routings]).mean()
    sizes = [routing.scores.logsumexp(dim=-1).square().mean() for routing in routings]
    router_z = torch.stack(sizes).mean()
    concentration = torch.stack([leaning(routing) for routing in routings]).mean()
    total = text + learning.balance * balance + learning.router_z * router_z
    total = total + learning.concentration * concentration
    return Losses(text, balance, router_z, concentration, total)
