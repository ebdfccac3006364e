"""An executor for kernels written in torch, which use torch's own threads."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

import torch

from moesaic.kernels.base import Blocks, ExpertKernel
from moesaic.kernels.grouping import group_by_expert


class TorchExecutor:
    """Implements `LayerExecutor`."""

    def __init__(self, kernel: ExpertKernel) -> None:
        self._kernel = kernel

    def expert(
        self,
        block: torch.Tensor,
        hidden: torch.Tensor,
        tokens: torch.Tensor | None,
        weights: torch.Tensor | float,
        out: torch.Tensor,
    ) -> None:
        self._kernel.compute(block, hidden, tokens, weights, out)

    def layer(
        self,
        blocks: Blocks,
        experts: Sequence[int],
        hidden: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        ragged: bool = False,
    ) -> int:
        total = out if out.dtype == torch.float32 else torch.empty(out.shape)
        total.zero_()
        groups = group_by_expert(ids, weights)
        started = perf_counter_ns()
        for expert in experts:
            group = groups.get(expert)
            if group is not None:
                self.expert(blocks.tensors[expert], hidden, group.tokens, group.weights, total)
        elapsed = perf_counter_ns() - started
        if total is not out:
            out.copy_(total)
        return elapsed
