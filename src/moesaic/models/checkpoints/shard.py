"""One safetensors file: its table of contents, checked at once, and its tensors, read on demand."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from moesaic.models.checkpoints.read_bytes import read_bytes
from moesaic.models.checkpoints.safetensors_header import read_entries

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}  # of plain weights
_ELEMENTS = DTYPES | {
    "F8_E4M3": torch.float8_e4m3fn,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}


class Shard:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries = read_entries(path)

    def read(self, name: str, index: int | None = None) -> torch.Tensor:
        """A tensor as it is stored, or one of those it is a stack of."""
        entry = self.entries[name]
        dtype = _ELEMENTS[entry.dtype]
        shape = entry.shape if index is None else entry.shape[1:]
        size = math.prod(shape) * dtype.itemsize
        start = entry.start + (0 if index is None else index * size)
        return read_bytes(self.path, start, size, name).view(dtype).view(shape)
