"""Muon for matrices, AdamW for the rest.

Muon turns a matrix' momentum into the nearest orthogonal matrix, so that all its directions learn
at one speed; small models get along with fewer steps than AdamW takes. The update is scaled to
AdamW's usual size (0.2 per weight and unit of rate), which makes rates comparable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from training.network import Network
from training.recipe import Learning

_MOMENTUM, _UPDATE_SIZE = 0.95, 0.2
_BETAS, _EPS = (0.9, 0.95), 1e-10
_TERMS = (3.4445, -4.7750, 2.0315)  # a quintic that drives singular values towards 1
_ROUNDS = 5


class Muon(torch.optim.Optimizer):
    """For parameters of two or more dimensions; the leading ones count separate matrices."""

    def __init__(self, weights: Iterable[torch.Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(weights, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Weights of one shape are taken together: a few large products, not many small ones."""
        for group in self.param_groups:
            alike: dict[tuple[int, ...], list[torch.Tensor]] = {}
            for weight in group["params"]:
                alike.setdefault(tuple(weight.shape), []).append(weight)
            for weights in alike.values():
                self._step_alike(weights, group["lr"], group["weight_decay"])

    def _step_alike(self, weights: list[torch.Tensor], rate: float, decay: float) -> None:
        gradients = [weight.grad for weight in weights]
        momenta = [self._momentum(weight) for weight in weights]
        torch._foreach_lerp_(momenta, gradients, 1 - _MOMENTUM)
        ahead = torch.stack(torch._foreach_lerp(gradients, momenta, _MOMENTUM))
        updates = orthogonal(ahead).to(ahead.dtype).unbind()
        size = _UPDATE_SIZE * max(weights[0].shape[-2:]) ** 0.5
        torch._foreach_mul_(weights, 1 - rate * decay)
        torch._foreach_add_(weights, updates, alpha=-rate * size)

    def _momentum(self, weight: torch.Tensor) -> torch.Tensor:
        state = self.state[weight]
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        return state["momentum"]


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Roughly U V^T of each matrix' U S V^T, by Newton-Schulz rounds in bf16."""
    a, b, c = _TERMS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = (matrices.mT if tall else matrices).to(torch.bfloat16)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Optimisers:
    """Both as one: rates follow a factor between 0 and 1."""

    def __init__(self, network: Network, learning: Learning) -> None:
        matrices, routers, others = _sorted_weights(network)
        fused = bool(network.embedding.is_cuda)
        groups = [
            {"params": others, "lr": learning.vector_rate},
            {"params": routers, "lr": learning.router_rate},
        ]
        self._all: Sequence[Any] = (
            Muon(matrices, learning.matrix_rate, learning.weight_decay),
            torch.optim.AdamW(groups, betas=_BETAS, eps=_EPS, weight_decay=0.0, fused=fused),
        )
        for group in self._groups():
            group["full_rate"] = group["lr"]

    def _groups(self) -> Iterable[dict[str, Any]]:
        for optimiser in self._all:
            yield from optimiser.param_groups

    def step(self, factor: float) -> None:
        for group in self._groups():
            group["lr"] = group["full_rate"] * factor
        for optimiser in self._all:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def state(self) -> list[Any]:
        return [optimiser.state_dict() for optimiser in self._all]

    def load(self, state: Sequence[Any]) -> None:
        """Rates stay those of the recipe at hand: it may have been changed since."""
        rates = [group["full_rate"] for group in self._groups()]
        for optimiser, its in zip(self._all, state, strict=True):
            optimiser.load_state_dict(its)
        for group, rate in zip(self._groups(), rates, strict=True):
            group["full_rate"] = rate


def _sorted_weights(network: Network) -> tuple[list[Any], list[Any], list[Any]]:
    matrices, routers, others = [], [], []
    for name, weight in network.named_parameters():
        if name.endswith("router"):
            routers.append(weight)
        elif name != "embedding" and weight.dim() > 1:
            matrices.append(weight)
        else:
            others.append(weight)
    return matrices, routers, others


# How learning rates go with a run's progress, and what progress is.


@dataclass(frozen=True, slots=True)
class Plan:
    """A run's length in steps or, where `minutes` is given, in time: whatever a machine's speed,
    rates have then come down when the time is over. Only steps make a run repeatable."""

    steps: int
    minutes: float | None = None

    def progress(self, step: int, seconds: float) -> float:
        """From 0 to 1, after so many steps that took so many seconds of training."""
        done = step / self.steps if self.minutes is None else seconds / (60 * self.minutes)
        return min(done, 1.0)


def rate_factor(progress: float, learning: Learning) -> float:
    """Up, level, down: a trapezoid."""
    rising = (progress + 1e-4) / learning.warm_up if learning.warm_up else 1.0
    falling = (1 - progress) / learning.decay if learning.decay else 1.0
    return max(0.0, min(1.0, rising, falling))
