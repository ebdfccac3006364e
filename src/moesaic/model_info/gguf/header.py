"""One GGUF file's header: metadata and the table of tensors, checked before anything uses it.

Layout: magic, version, two counts, the metadata (key, value type, value), the tensors (name,
dimensions, type, offset), padding, the data. Offsets count from where the data begins.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from moesaic.core.errors import BadCheckpoint
from moesaic.model_info.gguf.tensor_types import OTHERS, TYPES, TensorType

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT, _DEFAULT_ALIGNMENT = "general.alignment", 32
_MAX_ALIGNMENT = 1 << 20
_MAX_KEYS, MAX_TENSORS = 1 << 16, 1 << 18
_KEY_BYTES, _TENSOR_BYTES = 8 + 4 + 1, 8 + 4 + 8 + 4 + 8  # an entry takes at least so many
_LONGEST_KEY, _LONGEST_NAME, _MAX_DIMENSIONS = 1 << 10, 1 << 10, 4

_EXPERTS = re.compile(r"blk\.\d+\.ffn_(gate|up|down|gate_up)(_exps|\.\d+)\.weight")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    path: Path  # of the file that has it
    type: TensorType
    shape: tuple[int, ...]  # slowest dimension first, as torch has it; GGUF lists it last
    start: int  # in the file
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class Header:
    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor as it is listed; where the data begins is not known yet."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape) // self.type.weights * self.type.bytes


def is_expert(name: str) -> bool:
    """Whether a tensor has routed experts: a stack of them, or one (the first files of Mixtral)."""
    return _EXPERTS.fullmatch(name) is not None


def read_header(path: Path) -> Header:
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            reader = ByteReader(file, path, size)
            return _header(reader, path, size)
    except OSError as error:
        raise BadCheckpoint(path, "file", f"cannot be read: {error.strerror}") from None


def _header(reader: ByteReader, path: Path, size: int) -> Header:
    _check_version(reader)
    tensor_count = _count(reader, "tensor_count", _TENSOR_BYTES, MAX_TENSORS)
    key_count = _count(reader, "metadata_kv_count", _KEY_BYTES, _MAX_KEYS)
    metadata = _metadata(reader, key_count)
    entries = _entries(reader, tensor_count)
    alignment = _alignment(reader, metadata)
    data = -(-reader.position // alignment) * alignment
    tensors = {entry.name: _placed(reader, path, entry, data, alignment, size) for entry in entries}
    _refuse_overlap(reader, tensors)
    _check_order(reader, tensors, data, alignment)
    return Header(path, metadata, tensors)


def _check_version(reader: ByteReader) -> None:
    if reader.left() < 8 or reader.take(4, "magic") != _MAGIC:
        reader.fail("magic", "this is not a GGUF file")
    version = reader.u32("version")
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in _VERSIONS:
        reader.fail("version", "the file is big-endian, only little-endian files are read")
    if version not in _VERSIONS:
        known = " and ".join(map(str, _VERSIONS))
        reader.fail("version", f"GGUF version {version} is not supported; {known} are")


def _count(reader: ByteReader, field: str, entry_bytes: int, most: int) -> int:
    count = reader.u64(field)
    if count > most:
        reader.fail(field, f"expected at most {most}, not {count}")
    if count * entry_bytes > reader.left():
        reader.fail(field, f"the file is truncated: it cannot list {count} entries")
    return count


def _metadata(reader: ByteReader, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number in range(count):
        key = reader.string(f"key {number} of the metadata", _LONGEST_KEY)
        if key in found:
            reader.fail(key, "is in the metadata twice")
        found[key] = reader.value(reader.u32(key), key)
    return found


def _entries(reader: ByteReader, count: int) -> list[_Entry]:
    found: dict[str, _Entry] = {}
    for number in range(count):
        name = reader.string(f"name of tensor {number}", _LONGEST_NAME)
        if name in found:
            reader.fail(name, "is in the table of tensors twice")
        found[name] = _entry(reader, name)
    return list(found.values())


def _entry(reader: ByteReader, name: str) -> _Entry:
    dimensions = reader.u32(name)
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        reader.fail(name, f"expected 1 to {_MAX_DIMENSIONS} dimensions, not {dimensions}")
    sizes = [reader.u64(name) for _ in range(dimensions)]
    if not all(sizes):
        reader.fail(name, f"expected dimensions of 1 or more, not {sizes}")
    number, offset = reader.u32(name), reader.u64(name)
    kind = _type(reader, name, number)
    if sizes[0] % kind.weights:
        what = f"rows of {sizes[0]} weights are no whole blocks of {kind.name} ({kind.weights})"
        reader.fail(name, what)
    return _Entry(name, kind, tuple(reversed(sizes)), offset)


def _type(reader: ByteReader, name: str, number: int) -> TensorType:
    if number not in TYPES:
        known = ", ".join(sorted(kind.name for kind in TYPES.values()))
        called = OTHERS.get(number, f"unknown tensor type {number}")
        reader.fail(name, f"stored as {called}, which cannot be read; can be read: {known}")
    return TYPES[number]


def _alignment(reader: ByteReader, metadata: Mapping[str, Any]) -> int:
    value = metadata.get(_ALIGNMENT, _DEFAULT_ALIGNMENT)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not 8 <= value <= _MAX_ALIGNMENT or value % 8:
        reader.fail(_ALIGNMENT, f"expected a multiple of 8 up to {_MAX_ALIGNMENT}, not {value!r}")
    return int(value)


def _placed(
    reader: ByteReader, path: Path, entry: _Entry, data: int, alignment: int, size: int
) -> TensorInfo:
    if entry.offset % alignment:
        reader.fail(entry.name, f"offset {entry.offset} is no multiple of {alignment}")
    end = data + entry.offset + entry.size
    if end > size:
        what = f"its data ends at byte {end} of a file of {size}: it is truncated or damaged"
        reader.fail(entry.name, f"{what}; fetch it again")
    return TensorInfo(path, entry.type, entry.shape, data + entry.offset, entry.size)


def _refuse_overlap(reader: ByteReader, tensors: Mapping[str, TensorInfo]) -> None:
    end, before = 0, ""
    for name, info in sorted(tensors.items(), key=lambda item: item[1].start):
        if info.start < end:
            reader.fail(name, f"its data overlaps that of {before}")
        end, before = info.start + info.size, name


def _check_order(
    reader: ByteReader, tensors: Mapping[str, TensorInfo], data: int, alignment: int
) -> None:
    """llama.cpp requires it, too: data follows in the order of the table, without gaps. A file
    whose offsets were exchanged is refused. Bytes after the last tensor are ignored, as there."""
    expected = data
    for name, info in tensors.items():
        if info.start != expected:
            what = f"its data begins at byte {info.start}, expected {expected}: tensors follow each"
            reader.fail(name, f"{what} other in the order of the table")
        expected += -(-info.size // alignment) * alignment


# Reads the values a GGUF header consists of, and trusts none of them. Every length is held
# against the bytes that are left and against a limit before anything is allocated: a header takes
# at most `MAX_HEADER` bytes and `MAX_ELEMENTS` array elements.

MAX_HEADER = 1 << 28
MAX_ELEMENTS = 1 << 22  # of all arrays together; the largest vocabularies need 1.3 million
MAX_STRING = 1 << 24
_STRING, _ARRAY, _BOOL = 8, 9, 7
# Value type -> how `struct` calls it.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
_ELEMENT_BYTES = {_STRING: 8, _BOOL: 1} | {
    kind: struct.calcsize(f"<{code}") for kind, code in _SCALARS.items()
}


class ByteReader:
    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self.position = 0
        self._file, self._path, self._size = file, path, size
        self._elements = 0

    def left(self) -> int:
        return self._size - self.position

    def take(self, count: int, field: str) -> bytes:
        if count > self.left():
            what = f"the file is truncated: {count} bytes expected, {self.left()} left"
            self.fail(field, f"{what}; fetch it again")
        if self.position + count > MAX_HEADER:
            self.fail(field, f"the header is longer than {MAX_HEADER} bytes; no model's is")
        self.position += count
        data = self._file.read(count)
        if len(data) != count:
            self.fail(field, "the file ended early: it changed while being read")
        return data

    def u32(self, field: str) -> int:
        return int.from_bytes(self.take(4, field), "little")

    def u64(self, field: str) -> int:
        return int.from_bytes(self.take(8, field), "little")

    def string(self, field: str, longest: int = MAX_STRING) -> str:
        length = self.u64(field)
        if length > longest:
            self.fail(field, f"expected a text of at most {longest} bytes, not {length}")
        try:
            return self.take(length, field).decode()
        except UnicodeDecodeError as error:
            self.fail(field, f"expected UTF-8 text: {error.reason}")

    def value(self, kind: int, field: str) -> Any:
        if kind == _STRING:
            return self.string(field)
        if kind == _BOOL:
            return self._flag(field)
        if kind == _ARRAY:
            return self._array(field)
        if kind not in _SCALARS:
            self.fail(field, f"unknown value type {kind}")
        (value,) = self._numbers(kind, 1, field)
        return value

    def fail(self, field: str, what: str) -> NoReturn:
        raise BadCheckpoint(self._path, field, what)

    def _flag(self, field: str) -> bool:
        byte = self.take(1, field)[0]
        if byte > 1:
            self.fail(field, f"expected 0 or 1 for false or true, not {byte}")
        return bool(byte)

    def _numbers(self, kind: int, count: int, field: str) -> tuple[Any, ...]:
        data = self.take(count * _ELEMENT_BYTES[kind], field)
        values = struct.unpack(f"<{count}{_SCALARS[kind]}", data)
        if _SCALARS[kind] in "fd" and not all(map(math.isfinite, values)):
            self.fail(field, "expected finite numbers, found infinity or NaN")
        return values

    def _array(self, field: str) -> list[Any]:
        kind, count = self.u32(field), self.u64(field)
        if kind not in _ELEMENT_BYTES:
            self.fail(field, f"an array of value type {kind} is not supported")
        self._elements += count
        if self._elements > MAX_ELEMENTS:
            self.fail(field, f"{count} array elements are more than a model's header has")
        if count * _ELEMENT_BYTES[kind] > self.left():
            self.fail(field, f"the file is truncated: it has no {count} elements; fetch it again")
        if kind == _STRING:
            return [self.string(field) for _ in range(count)]
        if kind == _BOOL:
            return [self._flag(field) for _ in range(count)]
        return list(self._numbers(kind, count, field))
