"""What a decode step computes: written by the host before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The inputs of every token in turn: its number, its slot, its position and how many experts it
    uses; then how many tokens there are. `host` is pinned and written before a step begins,
    `device` is its copy."""

    host: torch.Tensor
    device: torch.Tensor
    tokens: int
    top_k: int

    @classmethod
    def of(cls, tokens: int, top_k: int) -> StepInputs:
        host = torch.zeros(4 * tokens + 1, dtype=torch.int64, pin_memory=True)
        return cls(host, torch.zeros_like(host, device="cuda"), tokens, top_k)

    def write(
        self, numbers: Sequence[int], slots: Sequence[int], positions: Sequence[int],
        counts: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """What the next launch computes; rows beyond the given ones are not active. Without
        `counts` every token uses all of top-k."""
        used = [self.top_k] * len(numbers) if counts is None else counts
        padding = [0] * (self.tokens - len(numbers))
        parts = (numbers, slots, positions, used)
        values = [value for part in parts for value in (*part, *padding)]
        self.host.numpy()[:] = (*values, len(numbers))

    @property
    def numbers(self) -> torch.Tensor:
        return self.device[: self.tokens]

    @property
    def slots(self) -> torch.Tensor:
        return self.device[self.tokens : 2 * self.tokens]

    @property
    def positions(self) -> torch.Tensor:
        return self.device[2 * self.tokens : 3 * self.tokens]

    @property
    def counts(self) -> torch.Tensor:
        return self.device[3 * self.tokens : 4 * self.tokens]

    @property
    def active(self) -> torch.Tensor:
        return self.device[4 * self.tokens :]

    @property
    def host_active(self) -> torch.Tensor:
        return self.host[4 * self.tokens :]
