"""Plain functions over flat arrays, compiled to machine code.

The decorated source is the only one: the simulator and the engine call the same compiled
function, and a native thread can have it as a C function without Python (numba's `cfunc`).
Inside: integers, floats and arrays of them; no objects, no allocation on the hot path."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compile on first call and remember the result on disk; releases the GIL while it runs."""
    jitted: F = numba.njit(cache=True, nogil=True, boundscheck=False)(function)
    return jitted
