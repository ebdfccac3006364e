"""What the `tokenizers` library raises on files that are JSON but make no tokenizer: its own
exceptions, and panics of its Rust code, which no `except Exception` catches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moesaic.core.errors import BadTokenizer, MoesaicError

_PANIC = "PanicException"  # a BaseException that pyo3 makes; it can be imported from nowhere


@contextmanager
def reported(file: Path, doing: str) -> Iterator[None]:
    """Faults of the library become BadTokenizer; ours, interrupts and exits pass."""
    try:
        yield
    except (MoesaicError, OSError, AssertionError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        what = str(error) or type(error).__name__
        raise BadTokenizer(file, "file", f"cannot {doing}: {what}; fetch it again") from None
