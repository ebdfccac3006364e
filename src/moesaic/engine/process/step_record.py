"""Which step an engine computes, and of which requests, in a file that outlives it: a process that
is killed cannot say it any more."""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct("=QQQ")  # steps begun, steps ended, requests
_PAIR = struct.Struct("=QQ")
_MOST = 64  # requests that are named
_SIZE = _HEADER.size + _MOST * _PAIR.size


class RecordedStep(NamedTuple):
    begun: int  # steps
    ended: int
    requests: tuple[tuple[int, int], ...]  # connection and id; of the last step that has begun

    @property
    def under_way(self) -> bool:
        return self.begun != self.ended


class StepRecord:
    def __init__(self, path: str | PathLike[str]) -> None:
        with Path(path).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SIZE)
        self._begun = self._ended = 0

    @classmethod
    def create(cls, path: str | PathLike[str]) -> StepRecord:
        Path(path).write_bytes(bytes(_SIZE))
        return cls(path)

    def begin(self, requests: Sequence[tuple[int, int]]) -> None:
        named = requests[:_MOST]
        flat = array("Q", [number for pair in named for number in pair])
        self._memory[_HEADER.size : _HEADER.size + len(flat) * flat.itemsize] = flat.tobytes()
        self._begun += 1
        self._write_header(len(named))

    def end(self) -> None:
        self._ended = self._begun
        _, _, count = _HEADER.unpack_from(self._memory)
        self._write_header(count)

    def read(self) -> RecordedStep:
        begun, ended, count = _HEADER.unpack_from(self._memory)
        stop = _HEADER.size + min(count, _MOST) * _PAIR.size
        pairs = _PAIR.iter_unpack(self._memory[_HEADER.size : stop])
        return RecordedStep(begun, ended, tuple((a, b) for a, b in pairs))

    def close(self) -> None:
        self._memory.close()

    def _write_header(self, requests: int) -> None:
        _HEADER.pack_into(self._memory, 0, self._begun, self._ended, requests)
