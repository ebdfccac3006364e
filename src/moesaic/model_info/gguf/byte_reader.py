"""Reads the values a GGUF header consists of, and trusts none of them.

Every length is held against the bytes that are left and against a limit before anything is
allocated: a header takes at most `MAX_HEADER` bytes and `MAX_ELEMENTS` array elements.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from moesaic.core.errors import BadCheckpoint

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
