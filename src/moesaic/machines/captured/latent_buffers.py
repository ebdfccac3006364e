"""Where prompts with latent attention have their queries and results, which are the largest arrays
of such a step. All sizes of steps share them: one runs at a time."""

from __future__ import annotations

import torch


class LatentBuffers:
    """Buffers for steps of up to `rows` tokens. A graph that made its own would keep it: memory
    that a small one has freed is of no use to a larger one, and warming up would take it once
    more."""

    def __init__(self, rows: int, heads: int, rank: int, device: str = "cuda") -> None:
        self._rows, self._heads, self._rank = rows, heads, rank
        with torch.inference_mode(mode=False):  # any launch may write to it
            self._memory = torch.zeros(
                2, rows * heads * rank, dtype=torch.bfloat16, device=device
            )  # fmt: skip

    def of(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and results, [heads, tokens, rank] each, contiguous."""
        assert tokens <= self._rows, f"a step of {tokens} tokens, but buffers for {self._rows}"
        shape = self._heads, tokens, self._rank
        queries, mixed = (part[: tokens * self._heads * self._rank] for part in self._memory)
        return queries.view(shape), mixed.view(shape)

    @property
    def nbytes(self) -> int:
        return int(self._memory.nbytes)
