"""Plain functions over flat arrays, compiled to machine code.

The decorated source is the only one: the simulator and the engine call the same compiled
function, and a native thread can have it as a C function without Python (numba's `cfunc`).
Inside: integers, floats and arrays of them; no objects.

Compiled code is kept on disk under a hash of all policy sources (`compiling/code_cache.py`). A
function from outside the package, as in a plugin, is compiled anew in every process: that hash does
not cover its source, nor that of the functions it calls."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba

from moesaic.compiling.code_cache import code_cache, holds_code
from moesaic.compiling.kept_code import kept, kept_c_function

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
# Division by zero gives infinity, as in numpy: a check would keep loops from being vectorised.
_OPTIONS: dict[str, Any] = {"boundscheck": False, "error_model": "numpy"}

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compile on first call, or load what an earlier run compiled; releases the GIL inside."""
    if not _is_ours(function):
        outside: F = numba.njit(nogil=True, **_OPTIONS)(function)
        return outside
    return kept(function, _cache_folder(), nogil=True, **_OPTIONS)


def c_function(signature: Any, function: Callable[..., object]) -> Any:
    """The function for C callers: it has an `address`, and never needs the interpreter."""
    if not _is_ours(function):
        return numba.cfunc(signature, **_OPTIONS)(function)
    return kept_c_function(signature, function, _cache_folder(), **_OPTIONS)


def _is_ours(function: Callable[..., object]) -> bool:
    return function.__code__.co_filename.startswith(_PACKAGE)


@cache
def _cache_folder() -> str | None:
    return code_cache(Path(__file__).parent, "compiled")


def compiled_before() -> bool:
    """Whether an earlier run has left compiled planners: without them, the first takes seconds."""
    return holds_code(_cache_folder())
