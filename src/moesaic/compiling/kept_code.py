"""Machine code that numba compiles, kept on disk for later runs, which may run at the same time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

F = TypeVar("F", bound=Callable[..., object])


def kept(function: F, folder: str, **options: Any) -> F:
    """The function, compiled on its first call with numba's `options`, or loaded from `folder`."""
    with kept_in(folder):
        jitted = numba.njit(cache=True, **options)(function)
        jitted._cache = _SharedCache(function)
    compiled: F = jitted
    return compiled


@contextmanager
def kept_in(folder: str) -> Iterator[None]:
    """Where numba keeps code, unless NUMBA_CACHE_DIR says otherwise."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = before or folder
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


class _SharedCache(FunctionCache):  # type: ignore[misc]
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = SharedFiles(self._cache_path, self._impl.filename_base, stamp)


class SharedFiles(IndexDataCacheFile):  # type: ignore[misc]
    """A function's code for each kind of arguments has a number, which an index keeps. Numba reads
    the index, takes the next number and writes both without a lock: of two processes that compile
    for different arguments at once, one's code would stand under the other's arguments for good."""

    def save(self, key: object, data: object) -> None:
        with self._locked(fcntl.LOCK_EX):
            super().save(key, data)

    def load(self, key: object) -> object:
        with self._locked(fcntl.LOCK_SH):
            return super().load(key)

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        os.makedirs(self._cache_path, exist_ok=True)  # somebody may have tidied up
        with open(f"{self._index_path}.lock", "ab") as file:
            fcntl.flock(file, kind)
            yield
