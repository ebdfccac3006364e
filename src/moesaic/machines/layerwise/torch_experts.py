"""Experts on the device, one after the other, by the kernel that has packed them: those of torch,
which compute on any device, and where the CPU plays the device all others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moesaic.kernels.base import ExpertKernel
from moesaic.machines.layerwise.pairs import Pairs
from moesaic.machines.real.streams import Streams


class TorchExperts:
    """Implements `DeviceExperts`."""

    buffers = None

    def __init__(self, kernel: ExpertKernel, streams: Streams) -> None:
        self._kernel, self._streams = kernel, streams

    def begin(self, hidden: torch.Tensor, pairs: Pairs) -> None:
        self._hidden, self._pairs = hidden, pairs
        self._out = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        if pairs.tokens > 1:
            rows, weights = pairs.order // pairs.top_k, pairs.weights.ravel()[pairs.order]
            self._rows = self._streams.upload(torch.from_numpy(rows))
            self._weights = self._streams.upload(torch.from_numpy(weights))[:, None]

    def launch(self, experts: Sequence[int], blocks: Sequence[torch.Tensor]) -> None:
        for expert, block in zip(experts, blocks, strict=True):
            self._add(expert, block)

    def total(self) -> torch.Tensor:
        return self._out

    def _add(self, expert: int, block: torch.Tensor) -> None:
        pairs, span = self._pairs, self._pairs.span(expert)
        if pairs.tokens == 1:  # nothing to gather
            weight = float(pairs.weights.ravel()[pairs.order[span]].item())
            self._kernel.compute(block, self._hidden, None, weight, self._out)
            return
        rows, weights = self._rows[span], self._weights[span]
        self._kernel.compute(block, self._hidden, rows, weights, self._out)
