"""Experts on several NUMA nodes: each is computed by workers of its own node, and never copied."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

import torch

from moesaic.core.numa import Nodes, node_of
from moesaic.kernels.base import Blocks
from moesaic.kernels.native_executor import NativeExecutor
from moesaic.kernels.native_format import NativeFormat


class NumaExecutor:
    """Implements `LayerExecutor`: one executor per node, concurrently; their results are added in
    the order of the nodes."""

    def __init__(
        self, kernel: NativeFormat, threads: int, nodes: Nodes, strict: bool = True
    ) -> None:
        counts = _threads_per_node(threads, [len(node.cores) for node in nodes])
        # The caller is one of the first node's threads.
        self.executors = [
            NativeExecutor(kernel, count, node.cores[: count if at else count - 1], strict)
            for at, (node, count) in enumerate(zip(nodes, counts, strict=True))
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
        per_node: list[list[int]] = [[] for _ in self.executors]
        for expert in experts:
            per_node[node_of(expert, len(blocks.tensors), len(self.executors))].append(expert)
        weights = weights.float().contiguous()
        parts = [torch.empty(hidden.shape) for _ in self.executors]
        for executor, own, part in zip(self.executors[1:], per_node[1:], parts[1:], strict=True):
            executor.submit(blocks, own, hidden, ids, weights, part, ragged)
        self.executors[0].layer(blocks, per_node[0], hidden, ids, weights, parts[0], ragged)
        for executor, part in zip(self.executors[1:], parts[1:], strict=True):
            executor.wait()
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
        self.executors[0].expert(block, hidden, tokens, weights, out)


def _threads_per_node(threads: int, cores: list[int]) -> list[int]:
    """In proportion to the nodes' cores: at least one each, `threads` in all."""
    counts = [1] * len(cores)
    for _ in range(threads - len(cores)):
        least_used = min(range(len(cores)), key=lambda node: counts[node] / cores[node])
        counts[least_used] += 1
    return counts
