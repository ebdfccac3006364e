"""Files of one function's compiled code: written whole, checked when read, locked while used."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha256
from io import BytesIO
from typing import IO, Any

from numba.core.caching import IndexDataCacheFile

from moesaic.core.files import whole_file

_DIGEST_BYTES = sha256().digest_size


class SharedFiles(IndexDataCacheFile):  # type: ignore[misc]
    """A function's code for each kind of arguments has a number, which an index keeps. Numba reads
    the index, takes the next number and writes both without a lock: of two processes that compile
    for different arguments at once, one's code would stand under the other's arguments for good.

    Every file begins with a hash of the rest. After a power cut a file may be empty, cut or full of
    other bytes, and loading such machine code may do anything: a file whose hash is wrong counts
    as missing, and saving replaces it."""

    _compiling: IO[bytes] | None = None

    def compile_alone(self) -> None:
        """Wait for a process that compiles the same function. Callers wait before those they call,
        in every process, so that no two wait for each other."""
        if self._compiling is None:
            os.makedirs(self._cache_path, exist_ok=True)
            file = open(f"{self._index_path}.compiling", "ab")  # noqa: SIM115
            fcntl.flock(file, fcntl.LOCK_EX)
            self._compiling = file

    def let_others_compile(self) -> None:
        if self._compiling is not None:
            fcntl.flock(self._compiling, fcntl.LOCK_UN)  # a process forked meanwhile has it, too
            self._compiling.close()
            self._compiling = None

    def save(self, key: object, data: object) -> None:
        with self._locked(fcntl.LOCK_EX):
            super().save(key, data)

    def load(self, key: object) -> object:
        with self._locked(fcntl.LOCK_SH):
            return super().load(key)

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        os.makedirs(self._cache_path, exist_ok=True)  # another process may have removed it
        with open(f"{self._index_path}.lock", "ab") as file:
            fcntl.flock(file, kind)
            yield

    def _load_index(self) -> dict[object, str]:
        try:
            stored = BytesIO(_checked(self._index_path))
            if pickle.load(stored) != self._version:
                return {}
            stamp, names = pickle.load(stored)
        except (OSError, _Damaged):
            return {}
        found: dict[object, str] = names
        return found if stamp == self._source_stamp else {}

    def _load_data(self, name: str) -> Any:
        try:
            return pickle.loads(_checked(self._data_path(name)))
        except _Damaged:
            return None

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[IO[bytes]]:
        content = BytesIO()
        yield content
        written = content.getvalue()
        file: AbstractContextManager[IO[bytes]] = whole_file(filepath)
        with file as stream:
            stream.write(sha256(written).digest() + written)


class _Damaged(Exception):
    """The file is not what was written."""


def _checked(path: str) -> bytes:
    """The file's content without its hash."""
    with open(path, "rb") as file:
        digest, content = file.read(_DIGEST_BYTES), file.read()
    if sha256(content).digest() != digest:
        raise _Damaged
    return content
