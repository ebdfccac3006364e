"""The table of contents of a safetensors file, checked as the format's own reader checks it.

Every byte after the header belongs to exactly one tensor: tensors that overlap, gaps between them
and bytes after the last one are refused, since a file with any of them says two things about the
same bytes, or was damaged. So are repeated names, which the official reader takes the last of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from moesaic.core.errors import BadCheckpoint
from moesaic.core.files import has_regular_file, reading
from moesaic.core.parsing import parse_json, short
from moesaic.model_info.text_config import text_name

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_MAX_DIMENSIONS = 8
_METADATA = "__metadata__"
_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    dtype: str  # as the format calls it
    shape: tuple[int, ...]
    start: int  # in the file
    end: int


def read_entries(path: Path) -> dict[str, TensorEntry]:
    """The tensors by name, in the order of the header."""
    if not has_regular_file(path, BadCheckpoint):
        raise BadCheckpoint(path, "file", "the file is missing")
    size = path.stat().st_size
    if size < LENGTH_BYTES:  # also what is in /proc: its files have no size
        raise BadCheckpoint(path, "header", "this is not a safetensors file")
    with path.open("rb") as file, reading(path, BadCheckpoint):
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if length > MAX_HEADER_BYTES:
            raise BadCheckpoint(path, "header", "this is not a safetensors file")
        data_start = LENGTH_BYTES + length
        if size < data_start:
            raise _truncated(path, "header", size, data_start)
        header = _parse(path, file.read(length))
    _check_metadata(path, header.pop(_METADATA, None))
    entries: dict[str, TensorEntry] = {}
    for name, fields in header.items():
        known = text_name(name)
        if known in entries:
            raise BadCheckpoint(path, name, f"is the same tensor as {known}; expected it only once")
        entries[known] = _entry(path, name, fields, data_start)
    _check_coverage(path, entries, data_start, size)
    return entries


def _parse(path: Path, header: bytes) -> dict[str, Any]:
    if not header.startswith((b"{", b"[")):
        raise BadCheckpoint(path, "header", "this is not a safetensors file")
    content = parse_json(header, BadCheckpoint, path, "header", finite=True)
    if not isinstance(content, dict):
        raise BadCheckpoint(path, "header", "expected a table of tensors")
    return content


def _check_metadata(path: Path, metadata: Any) -> None:
    texts = list(metadata.values()) if isinstance(metadata, dict) else [None]
    if metadata is not None and not all(isinstance(text, str) for text in texts):
        raise BadCheckpoint(path, _METADATA, "expected texts by name")


def _entry(path: Path, name: str, fields: Any, data_start: int) -> TensorEntry:
    fields = fields if isinstance(fields, dict) else {}
    offsets, sizes, dtype = (fields.get(key) for key in ("data_offsets", "shape", "dtype"))
    if not (_are_whole(offsets) and len(offsets) == 2 and _are_whole(sizes)):
        raise BadCheckpoint(path, name, "expected dtype, shape and data_offsets")
    if len(sizes) > _MAX_DIMENSIONS or min(sizes, default=0) < 0:
        what = f"expected at most {_MAX_DIMENSIONS} sizes, none of them negative"
        raise BadCheckpoint(path, name, what)
    if not isinstance(dtype, str) or dtype not in _BITS:
        what = f"expected a dtype of the format ({', '.join(_BITS)}), not {short(dtype)}"
        raise BadCheckpoint(path, name, what)
    (start, end), shape, bits = offsets, tuple(sizes), math.prod(sizes) * _BITS[dtype]
    if not 0 <= start <= end or 8 * (end - start) != bits:
        what = f"{dtype} {list(shape)} takes {bits / 8:.15g} bytes"
        raise BadCheckpoint(path, name, f"{what}, the header gives it {end - start}")
    return TensorEntry(dtype, shape, data_start + start, data_start + end)


def _check_coverage(
    path: Path, entries: Mapping[str, TensorEntry], data_start: int, size: int
) -> None:
    """Each tensor begins where the one before it ends, and the file ends with the last one."""
    end, before = data_start, "the header"
    for name in sorted(entries, key=lambda name: (entries[name].start, entries[name].end)):
        start = entries[name].start
        if start < end:
            raise BadCheckpoint(path, name, f"its data overlaps that of {before}")
        if start > end:
            what = f"{start - end} bytes between {before} and this tensor belong to no tensor"
            raise BadCheckpoint(path, name, what)
        end, before = entries[name].end, name
    if size < end:
        raise _truncated(path, before, size, end)
    if size > end:
        what = f"{size - end} bytes after {before} belong to no tensor: expected {end} bytes"
        raise BadCheckpoint(path, "file", f"{what}, it has {size}; fetch it again")


def _are_whole(value: Any) -> bool:
    """A list of integers. Infinity is not one, nor is true."""
    return isinstance(value, list) and all(type(item) is int for item in value)


def _truncated(path: Path, name: str, size: int, expected: int) -> BadCheckpoint:
    what = f"the file is truncated: expected {expected} bytes, it has {size}; fetch it again"
    return BadCheckpoint(path, name, what)


def contents_digest(path: Path) -> str:
    """A digest of a safetensors file's table of contents."""
    with path.open("rb") as file:
        start = file.read(LENGTH_BYTES)
        length = int.from_bytes(start, "little")
        if length > MAX_HEADER_BYTES:
            raise BadCheckpoint(path, "header", "this is not a safetensors file")
        return sha256(start + file.read(length)).hexdigest()
