"""One safetensors file: its table of contents, checked at once, and its tensors, read on demand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from moesaic.core.errors import BadCheckpoint
from moesaic.core.parsing import parse_json
from moesaic.model_info.text_config import text_name
from moesaic.models.read_bytes import read_bytes

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}  # of plain weights
_ELEMENTS = DTYPES | {
    "F8_E4M3": torch.float8_e4m3fn,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}
LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000  # the format's own limit
_MAX_DIMENSIONS = 8


@dataclass(frozen=True, slots=True)
class TensorEntry:
    dtype: str  # as the format calls it
    shape: tuple[int, ...]
    start: int  # in the file
    end: int


class Shard:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries = _contents(path)

    def read(self, name: str, index: int | None = None) -> torch.Tensor:
        """A tensor as it is stored, or one of those it is a stack of."""
        entry = self.entries[name]
        dtype = _ELEMENTS[entry.dtype]
        shape = entry.shape if index is None else entry.shape[1:]
        size = math.prod(shape) * dtype.itemsize
        start = entry.start + (0 if index is None else index * size)
        return read_bytes(self.path, start, size, name).view(dtype).view(shape)


def _contents(path: Path) -> dict[str, TensorEntry]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if size < LENGTH_BYTES or length > _LONGEST_HEADER:
            raise BadCheckpoint(path, "header", "this is not a safetensors file")
        data_start = LENGTH_BYTES + length
        if size < data_start:
            raise _truncated(path, "header", size, data_start)
        header = _parse(path, file.read(length))
    entries = {}
    for name, fields in header.items():
        if name != "__metadata__":
            entries[text_name(name)] = _entry(path, name, fields, data_start)
    last = max(entries, key=lambda name: entries[name].end, default=None)
    if last is not None and size < entries[last].end:
        raise _truncated(path, last, size, entries[last].end)
    return entries


def _parse(path: Path, header: bytes) -> dict[str, Any]:
    if not header.startswith((b"{", b"[")):
        raise BadCheckpoint(path, "header", "this is not a safetensors file")
    content = parse_json(header, BadCheckpoint, path, "header", finite=True)
    if not isinstance(content, dict):
        raise BadCheckpoint(path, "header", "expected a table of tensors")
    return content


def _entry(path: Path, name: str, fields: Any, data_start: int) -> TensorEntry:
    fields = fields if isinstance(fields, dict) else {}
    offsets, sizes, dtype = (fields.get(key) for key in ("data_offsets", "shape", "dtype"))
    if not (_are_whole(offsets) and len(offsets) == 2 and _are_whole(sizes)):
        raise BadCheckpoint(path, name, "expected dtype, shape and data_offsets")
    if not isinstance(dtype, str) or len(sizes) > _MAX_DIMENSIONS or min(sizes, default=0) < 0:
        what = f"expected a dtype and at most {_MAX_DIMENSIONS} sizes, none of them negative"
        raise BadCheckpoint(path, name, what)
    (start, end), shape = offsets, tuple(sizes)
    size = math.prod(shape) * _ELEMENTS[dtype].itemsize if dtype in _ELEMENTS else end - start
    if not 0 <= start <= end or end - start != size:
        what = f"{dtype} {list(shape)} takes {size} bytes, the header gives it {end - start}"
        raise BadCheckpoint(path, name, what)
    return TensorEntry(dtype, shape, data_start + start, data_start + end)


def _are_whole(value: Any) -> bool:
    """Numbers of a list; Infinity is none, nor is true."""
    return isinstance(value, list) and all(type(item) is int for item in value)


def _truncated(path: Path, name: str, size: int, expected: int) -> BadCheckpoint:
    what = f"the file is truncated: expected {expected} bytes, it has {size}; fetch it again"
    return BadCheckpoint(path, name, what)
