"""The expert store: every routed expert once, packed, in main memory.

One contiguous block per expert, any of them addressable, so that a device computes from it or
copies it in one piece. The memory is requested in huge pages: experts are read whole,
and 4 KiB pages would cost a page-table walk every 64 cache lines. Or it is the mapped file of a
packed model, which all processes share and none writes.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import torch

from moesaic.core.numa import Nodes, experts_of
from moesaic.core.routing import ExpertId
from moesaic.kernels.base import Blocks, ExpertKernel, ExpertWeights
from moesaic.machines.real.mapped_blocks import MappedBlocks
from moesaic.machines.real.node_memory import prefer_node

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


class ExpertStore:
    def __init__(
        self,
        kernel: ExpertKernel,
        layers: int,
        experts: int,
        nodes: Nodes = (),
        mapped: MappedBlocks | None = None,
    ) -> None:
        """`nodes` are the memory nodes that experts are spread over; those of a `mapped` file lie
        where the system keeps its pages."""
        assert mapped is None or len(nodes) < 2, "pages of a file are not spread"
        self.kernel, self.nodes = kernel, nodes
        self.layers, self.experts = layers, experts
        self.bytes = layers * experts * kernel.block_bytes
        self.mapped = mapped is not None
        if mapped is None:
            # Shared memory, mmap's default, has a huge-page setting of its own, mostly off.
            memory = mmap.mmap(-1, self.bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.huge_pages = _ask_for_huge_pages(memory)
            flat = torch.frombuffer(memory, dtype=torch.uint8)
        else:
            self.huge_pages, flat = False, mapped.blocks(self.bytes)
        self._blocks = flat.view(layers, experts, kernel.block_bytes)
        if len(nodes) > 1:
            self._spread()
        # Indexing a tensor costs microseconds and a layer asks for several blocks: made once.
        self._layers = [Blocks([row[e] for e in range(experts)]) for row in self._blocks]

    def _spread(self) -> None:
        """Every layer over all nodes, so that all of them work on it."""
        size = self.kernel.block_bytes
        for row in self._blocks:
            for at, node in enumerate(self.nodes):
                mine = experts_of(at, self.experts, len(self.nodes))
                prefer_node(row.data_ptr() + mine.start * size, len(mine) * size, node.number)

    def put(self, expert: ExpertId, weights: ExpertWeights) -> None:
        assert not self.mapped, "a mapped file is not written"
        self.kernel.pack(weights, self.block(*expert))

    def block(self, layer: int, expert: int) -> torch.Tensor:
        return self._layers[layer].tensors[expert]

    def rows(self, layer: int) -> torch.Tensor:
        """All blocks of a layer, as one range of bytes."""
        return self._blocks[layer].view(-1)

    def layer(self, layer: int) -> Blocks:
        return self._layers[layer]

    def some_blocks(self, count: int) -> list[torch.Tensor]:
        """Different experts from all over the store, or as many as there are."""
        total = self.layers * self.experts
        count = min(count, total)
        return [self.block(*divmod(i * total // count, self.experts)) for i in range(count)]


def _ask_for_huge_pages(memory: mmap.mmap) -> bool:
    """Whether the system may use them; asking costs nothing."""
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
        return "[never]" not in _HUGE_PAGES.read_text()
    except (OSError, AttributeError, ValueError):
        return False
