"""The GPU's part of a layer: which implementation computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from moesaic.kernels.base import ExpertKernel
from moesaic.kernels.quantized import QuantizedKernel
from moesaic.kernels.reference import ReferenceKernel
from moesaic.machines.layerwise.pairs import Pairs
from moesaic.machines.layerwise.table_experts import TableExperts
from moesaic.machines.layerwise.torch_experts import TorchExperts
from moesaic.machines.real.streams import Streams


class DeviceExperts(Protocol):
    """`begin`, any number of launches, `total`: one layer."""

    @property
    def buffers(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """`inner` and `parts` of `GpuExperts`, for others to use between two layers."""

    def begin(self, hidden: torch.Tensor, pairs: Pairs) -> None:
        """hidden [tokens, hidden] on the device."""

    def launch(self, experts: Sequence[int], blocks: Sequence[torch.Tensor]) -> None:
        """Compute these experts from their blocks on the device."""

    def total(self) -> torch.Tensor:
        """The weighted sums of the experts launched: fp32 [tokens, hidden]."""


def device_experts(
    kernel: ExpertKernel, tokens: int, top_k: int, experts: int, streams: Streams
) -> DeviceExperts:
    """Experts for blocks that the kernel has packed. `tokens` is the longest step. Where the CPU
    plays the device, the kernel that has packed them computes them."""
    if streams.device == "cpu" or isinstance(kernel, ReferenceKernel | QuantizedKernel):
        return TorchExperts(kernel, streams)
    return TableExperts(kernel.shape, kernel.dtype, tokens, top_k, experts, streams)
