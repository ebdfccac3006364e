"""Where a network gets its tensors while it is built: from a checkpoint, or, for a dry run that
finds every mistake before anything large is read, from the checkpoint's table of contents.
"""

from __future__ import annotations

from typing import Protocol

import torch

from moesaic.models.checkpoints.named_tensors import NamedTensors


class TensorSource(Protocol):
    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The named tensor, in `dtype` or else the one everything is computed in."""

    def empty(self, values: int) -> torch.Tensor:
        """A flat block to pack matrices into."""


class MetaTensors:
    """Checks names and shapes; its tensors are on the meta device, without data."""

    def __init__(self, checkpoint: NamedTensors) -> None:
        self._checkpoint = checkpoint

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        self._checkpoint.expect(name, shape)
        return torch.empty(shape, dtype=dtype, device="meta")

    def empty(self, values: int) -> torch.Tensor:
        return torch.empty(values, device="meta")


class CheckpointTensors:
    def __init__(self, checkpoint: NamedTensors, dtype: torch.dtype, device: str) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        stored = self._checkpoint.read(name, shape)
        return stored.to(dtype=dtype or self._dtype, device=self._device)

    def empty(self, values: int) -> torch.Tensor:
        return torch.empty(values, dtype=self._dtype, device=self._device)
