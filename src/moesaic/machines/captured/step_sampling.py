"""How the rows of a captured step are sampled: an input of the step, as its tokens are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from moesaic.kernels.gpu.sampling import WORDS, TokenSampling
from moesaic.machines.real.forward_pass import RowSampling


@dataclass(frozen=True, slots=True)
class StepSampling:
    """`host` is pinned and written before a launch, `device` is its copy: `WORDS` numbers of every
    row, 0 of rows that are not used. All steps share the kernel's buffers."""

    host: torch.Tensor
    device: torch.Tensor
    kernel: TokenSampling
    vocabulary: int

    @classmethod
    def of(cls, rows: int, vocabulary: int, kernel: TokenSampling) -> StepSampling:
        host = torch.zeros(rows * WORDS, dtype=torch.float64, pin_memory=True)
        return cls(host, torch.zeros_like(host, device="cuda"), kernel, vocabulary)

    def write(self, sampling: Sequence[RowSampling]) -> None:
        words = [word for row in sampling for word in row.words(self.vocabulary)]
        host = self.host.numpy()
        host[: len(words)] = words
        host[len(words) :] = 0.0

    def launch(self, logits: torch.Tensor) -> torch.Tensor:
        """Tokens [rows], -1 where logits are not finite."""
        return self.kernel.launch(logits, self.device.view(-1, WORDS))
