"""One safetensors file: its table of contents, checked at once, and its tensors, read on demand.

Read with plain file reads into our own memory, not mapped: what was read and converted does not
stay behind as mapped pages, so loading a model takes little more memory than the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from moesaic.core.errors import BadCheckpoint
from moesaic.core.parsing import parse_json

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_LENGTH_BYTES = 8
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
        dtype = DTYPES[entry.dtype]
        shape = entry.shape if index is None else entry.shape[1:]
        size = math.prod(shape) * dtype.itemsize
        raw = torch.empty(size, dtype=torch.uint8)
        with self.path.open("rb", buffering=0) as file:
            file.seek(entry.start + (0 if index is None else index * size))
            _fill(file, memoryview(raw.numpy()), self.path, name)
        return raw.view(dtype).view(shape)


def _fill(file: Any, buffer: memoryview, path: Path, name: str) -> None:
    """One read may give less than asked, and never more than 2 GiB."""
    done = 0
    while done < len(buffer):
        count = file.readinto(buffer[done:])
        if not count:
            raise BadCheckpoint(path, name, "the file ended early: it changed while being read")
        done += count


def _contents(path: Path) -> dict[str, TensorEntry]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES or length > _LONGEST_HEADER:
            raise BadCheckpoint(path, "header", "this is not a safetensors file")
        data_start = _LENGTH_BYTES + length
        if size < data_start:
            raise _truncated(path, "header", size, data_start)
        header = _parse(path, file.read(length))
    entries = {}
    for name, fields in header.items():
        if name != "__metadata__":
            entries[name] = _entry(path, name, fields, data_start)
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
    size = math.prod(shape) * DTYPES[dtype].itemsize if dtype in DTYPES else end - start
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
