"""Experts on several memory nodes: each is computed by workers next to it, and never copied."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

import torch

from moesaic.core.numa import Nodes, node_of
from moesaic.kernels.base import Blocks
from moesaic.kernels.native import Crew, NativeKernel


class NodeCrew:
    """Implements `LayerCrew`: a crew for every node, working at the same time; their parts are
    added in the order of the nodes."""

    def __init__(
        self, kernel: NativeKernel, threads: int, nodes: Nodes, strict: bool = True
    ) -> None:
        share = _shares(threads, [len(node.cores) for node in nodes])
        # The caller works with the first node's.
        self.crews = [
            Crew(kernel, count, node.cores[: count if at else count - 1], strict)
            for at, (node, count) in enumerate(zip(nodes, share, strict=True))
        ]

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
        started = perf_counter_ns()
        here: list[list[int]] = [[] for _ in self.crews]
        for expert in experts:
            here[node_of(expert, len(blocks.tensors), len(self.crews))].append(expert)
        weights = weights.float().contiguous()
        parts = [torch.empty(hidden.shape) for _ in self.crews]
        for crew, mine, part in zip(self.crews[1:], here[1:], parts[1:], strict=True):
            crew.submit(blocks, mine, hidden, ids, weights, part, ragged)
        self.crews[0].layer(blocks, here[0], hidden, ids, weights, parts[0], ragged)
        for crew, part in zip(self.crews[1:], parts[1:], strict=True):
            crew.wait()
            parts[0] += part
        out.copy_(parts[0])
        return perf_counter_ns() - started

    def expert(
        self,
        block: torch.Tensor,
        hidden: torch.Tensor,
        tokens: torch.Tensor | None,
        weights: torch.Tensor | float,
        out: torch.Tensor,
    ) -> None:
        self.crews[0].expert(block, hidden, tokens, weights, out)


def _shares(threads: int, cores: list[int]) -> list[int]:
    """Threads for every node, by its cores: at least one each, `threads` in all."""
    shares = [1] * len(cores)
    for _ in range(threads - len(cores)):
        emptiest = min(range(len(cores)), key=lambda node: shares[node] / cores[node])
        shares[emptiest] += 1
    return shares
