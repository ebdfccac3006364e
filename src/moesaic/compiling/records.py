"""Records: memory with named members, which Python, compiled code and C++ share.

A record is a class whose annotations are its members, in order: `int` and `float` are one word of
64 bits each, another record stands inside, and `Ints`, `Floats` and `Octets` are arrays, whose
default `array(...)` says how large they are. Compiled functions take records by reference
(record_types.py): to them `record.member` is a number, a record or an array, as it is in Python. An
array's member holds its address and its shape, so that other sizes need no other code."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from inspect import get_annotations
from sys import modules
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DTYPES = {"Ints": np.int64, "Floats": np.float64, "Octets": np.uint8}
_CODES = {"int": "q", "float": "d"}  # of a word, to `memoryview`
_WORD = 8  # bytes


class ArrayShape(NamedTuple):
    """Numbers, and names of numbers in the sizes that memory is made for."""

    dims: tuple[str | int, ...]

    def sized(self, sizes: object) -> tuple[int, ...]:
        return tuple(d if isinstance(d, int) else int(getattr(sizes, d)) for d in self.dims)


def array(*dims: str | int) -> Any:
    """An array member of this shape."""
    return ArrayShape(dims)


class Member(NamedTuple):
    """`kind` is `int`, `float` or the name of an array's type, or the record inside; `at` counts
    words from where the record begins."""

    name: str
    kind: str
    at: int
    words: int
    shape: ArrayShape | None
    record: type[Record] | None


class _Word:
    """A number of a record, seen from Python."""

    def __init__(self, member: Member) -> None:
        self._code, self._at = _CODES[member.kind], member.at

    def __get__(self, record: Record, owner: type[Record]) -> int | float:
        value: int | float = record.views[self._code][self._at]
        return value

    def __set__(self, record: Record, value: float) -> None:
        record.views[self._code][self._at] = value


class Record:
    """A record in memory that something else owns."""

    members: tuple[Member, ...] = ()
    words = 0
    sizes: Any = None  # that the arrays were made for

    def __init_subclass__(cls) -> None:
        found, at = [], 0
        for name, kind in get_annotations(cls).items():
            assert not hasattr(Record, name), f"{name} is what every record has"
            shape = cls.__dict__.get(name)
            if kind in _CODES:
                found.append(Member(name, kind, at, 1, None, None))
                setattr(cls, name, _Word(found[-1]))
            elif shape is not None:
                found.append(Member(name, kind, at, 1 + len(shape.dims), shape, None))
                delattr(cls, name)
            else:
                inside = getattr(modules[cls.__module__], kind)
                found.append(Member(name, kind, at, inside.words, None, inside))
            at += found[-1].words
        cls.members, cls.words = tuple(found), at

    def __init__(self, memory: NDArray[np.int64], first: int) -> None:
        own = memory[first : first + self.words]
        self.memory_words = memory
        self.address = own.ctypes.data
        self.views: dict[str, Any] = {"q": own.data, "d": own.view(np.float64).data}
        for member in self.members:
            if member.record is not None:
                setattr(self, member.name, member.record(memory, first + member.at))

    @property
    def arrays(self) -> Iterator[tuple[Record, Member]]:
        """All array members, with the records they stand in."""
        for member in self.members:
            if member.record is not None:
                yield from getattr(self, member.name).arrays
            elif member.shape is not None:
                yield self, member

    def place(self, member: Member, shape: tuple[int, ...], at: int) -> int:
        """The array's elements begin with this word of the memory; returns where they end."""
        dtype = DTYPES[member.kind]
        end = at + array_words(member, shape)
        part = self.memory_words[at:end].view(dtype)[: int(np.prod(shape))].reshape(shape)
        for offset, value in enumerate((self.memory_words.ctypes.data + _WORD * at, *shape)):
            self.views["q"][member.at + offset] = value
        setattr(self, member.name, part)
        return end


def array_words(member: Member, shape: tuple[int, ...]) -> int:
    size = int(np.prod(shape)) * np.dtype(DTYPES[member.kind]).itemsize
    return -(-size // _WORD)


def made(record: type[Any], sizes: object) -> Any:
    """A record with memory of its own: everything 0, and arrays as large as the sizes say."""
    root: type[Record] = record
    shapes = [(member, member.shape.sized(sizes)) for member in _array_members(root)]
    end = root.words + sum(array_words(*each) for each in shapes)
    found, at = root(np.zeros(end, dtype=np.int64), 0), root.words
    for (inside, member), (_, shape) in zip(found.arrays, shapes, strict=True):
        at = inside.place(member, shape, at)
    found.sizes = sizes
    return found


def _array_members(record: type[Record]) -> Iterator[Any]:
    for member in record.members:
        if member.record is not None:
            yield from _array_members(member.record)
        elif member.shape is not None:
            yield member


def copy_record(old: Record, new: Record) -> None:
    """Every number, and of every array what it has space for in its last dimension."""
    for member in old.members:
        if member.record is not None:
            copy_record(getattr(old, member.name), getattr(new, member.name))
        elif member.shape is not None:
            kept = getattr(old, member.name)
            getattr(new, member.name)[..., : kept.shape[-1]] = kept
        else:
            setattr(new, member.name, getattr(old, member.name))


def layout(record: type[Record], *constants: int) -> int:
    """A hash of the members' names, kinds and order, and of numbers that say what stands in them: a
    positive number of one word."""
    described = [record.__name__, *map(str, constants)]
    for member in record.members:
        inside = layout(member.record) if member.record else ""
        dims = len(member.shape.dims) if member.shape else ""
        described.append(f"{member.name}:{member.kind}{dims}{inside}")
    return int.from_bytes(sha256("\n".join(described).encode()).digest()[:8], "little") >> 1
