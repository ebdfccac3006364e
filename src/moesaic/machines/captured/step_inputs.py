"""What a decode step computes, and where its tokens lie in the KV cache: written by the host before
it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from moesaic.models.attentions.kv_cache import BlockCache

_ROWS = 5


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The inputs of every token in turn: its number, its slot, its position, how many experts it
    uses and its block of the KV cache, which the step enters in the GPU's table; then how many
    tokens there are. `host` is pinned and written before a step begins, `device` is its copy."""

    host: torch.Tensor
    device: torch.Tensor
    tokens: int
    top_k: int
    cache: BlockCache

    @classmethod
    def of(cls, tokens: int, top_k: int, cache: BlockCache) -> StepInputs:
        host = torch.zeros(_ROWS * tokens + 1, dtype=torch.int64, pin_memory=True)
        return cls(host, torch.zeros_like(host, device="cuda"), tokens, top_k, cache)

    def write(
        self, numbers: Sequence[int], slots: Sequence[int], positions: Sequence[int],
        counts: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """What the next launch computes; rows beyond the given ones are not active. Without
        `counts` every token uses all of top-k."""
        first = dict(zip(reversed(slots), reversed(positions), strict=True))
        for slot, position in first.items():
            self.cache.upload_table(slot, position)
        used = [self.top_k] * len(numbers) if counts is None else counts
        padding = [0] * (self.tokens - len(numbers))
        parts = (numbers, slots, positions, used, self.cache.blocks_at(slots, positions))
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
    def blocks(self) -> torch.Tensor:
        return self.device[4 * self.tokens : 5 * self.tokens]

    @property
    def active(self) -> torch.Tensor:
        return self.device[_ROWS * self.tokens :]

    @property
    def host_active(self) -> torch.Tensor:
        return self.host[_ROWS * self.tokens :]
