"""Plain functions over flat arrays, compiled to machine code.

The decorated source is the only one: the simulator and the engine call the same compiled
function, and a native thread can have it as a C function without Python (numba's `cfunc`).
Inside: integers, floats and arrays of them; no objects.

Compiled code is kept on disk under a hash of all policy sources (`core/code_cache.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba

from moesaic.core.code_cache import code_cache

# Division by zero gives infinity, as in numpy: a check would keep loops from being vectorised.
_OPTIONS: dict[str, Any] = {"boundscheck": False, "error_model": "numpy"}

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compile on first call, or load what an earlier run compiled; releases the GIL inside."""
    with _kept_on_disk():
        jitted: F = numba.njit(cache=True, nogil=True, **_OPTIONS)(function)
    return jitted


def c_function(signature: Any, function: Callable[..., object]) -> Any:
    """The function for C callers: it has an `address`, and never needs the interpreter."""
    with _kept_on_disk():
        return numba.cfunc(signature, cache=True, nopython=True, **_OPTIONS)(function)


@contextmanager
def _kept_on_disk() -> Iterator[None]:
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = before or _cache_folder()
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


@cache
def _cache_folder() -> str:
    return code_cache(Path(__file__).parent, "compiled")


def compiled_before() -> bool:
    """Whether an earlier run has left compiled planners: without them, the first takes seconds."""
    return any(Path(_cache_folder()).rglob("*.nbc"))
