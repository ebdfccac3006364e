"""Standard output whose errors name it: a full disk or device behind `>` is not mistaken for the
disk of a cache, which fails with the same error."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

NAME = "standard output"


class _Named(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = error.filename or NAME
            raise


def name_errors() -> None:
    """Replace `sys.stdout` by a stream to the same file, unless it is something else already."""
    before = sys.stdout
    if type(before) is not io.TextIOWrapper or before.fileno() != 1:
        return
    before.flush()
    raw = _Named(1, "wb", closefd=False)
    buffer: Any = raw if before.write_through else io.BufferedWriter(raw)  # python -u
    sys.stdout = io.TextIOWrapper(
        buffer,
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )


def discard_output() -> None:
    """What is still buffered goes nowhere: writing it when Python exits would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
