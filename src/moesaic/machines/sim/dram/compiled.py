"""Functions over flat arrays of integers, compiled to machine code and kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from moesaic.compiling.code_cache import code_cache, holds_code
from moesaic.compiling.kept_code import kept

F = TypeVar("F", bound=Callable[..., object])

_FOLDER = code_cache(Path(__file__).parent, "compiled-dram")


# References to arrays are not counted: nothing compiled here creates or keeps one, and counting
# them on every call of a small function takes ten times as long as the function.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def compiled(function: F) -> F:
    """Compile on first call, or load what an earlier run compiled; releases the GIL inside."""
    return kept(function, _FOLDER, **_OPTIONS)


def inlined(function: F) -> F:
    """Becomes part of every compiled function that calls it."""
    return kept(function, _FOLDER, forceinline=True, **_OPTIONS)


def compiled_before() -> bool:
    """Whether an earlier run has left compiled code: without it, the first takes seconds."""
    return holds_code(_FOLDER)
