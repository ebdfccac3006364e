"""What the network needs of a model's weights, whichever format they are stored in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch


class NamedTensors(Protocol):
    """Tensors by their published (Hugging Face) names; opening reads none of them."""

    described_by: str  # what a user would correct if the tensors do not fit the description

    def __contains__(self, name: str) -> bool: ...

    def expect(self, name: str, shape: Sequence[int]) -> None:
        """The tensor is there, of this shape, in a precision we read; or BadCheckpoint."""

    def read(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """The tensor in floating point: quantized tensors are dequantized to fp32."""

    def read_part(self, name: str, shape: Sequence[int], index: int) -> torch.Tensor:
        """One of the tensors a stack of this shape consists of; only its bytes are read."""

    def unread(self) -> list[str]:
        """The tensors nothing has asked for so far, as the file calls them."""

    def block_formats(self) -> tuple[str, ...]:
        """The formats of quantized experts; none where they are in floating point."""

    def file_of(self, name: str) -> Path:
        """The file of a tensor in `unread`, or by its published name."""
