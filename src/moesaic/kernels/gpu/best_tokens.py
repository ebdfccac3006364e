"""The best token of every row of logits, in one launch: PyTorch takes six for the same."""

from __future__ import annotations

import torch

from moesaic.kernels.gpu.modules import load_module

_THREADS = 256
_PARTS = 64  # of a row, where there are few rows


class BestTokens:
    """The best token of up to so many rows; it is compiled when made, and its buffers do not
    move."""

    def __init__(self, rows: int) -> None:
        self._kernel = load_module("best", {}).function("best_tokens")
        self._found = torch.zeros(rows, dtype=torch.int64, device="cuda")
        self._ended = torch.zeros(rows, dtype=torch.int32, device="cuda")

    def launch(self, logits: torch.Tensor, tokens: torch.Tensor) -> None:
        """logits [rows, vocabulary] in bf16; to `tokens` [rows], in pinned memory or the GPU's: the
        first of the largest, -1 where that is not finite."""
        rows, vocabulary = logits.shape
        assert logits.is_contiguous(), "rows one behind the other"
        assert logits.dtype is torch.bfloat16, "logits as networks have them"
        parts = max(1, min(_PARTS, 4 * _PARTS // rows))
        self._kernel(
            (parts, rows), _THREADS, logits, vocabulary, self._found, self._ended, tokens,
            early=True,
        )  # fmt: skip
