"""Output folders appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """An empty folder beside `path` to fill, which takes its place at the end: an error leaves
    what was there before."""
    target = Path(path)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as place:
        fresh = Path(place) / "new"
        fresh.mkdir()
        yield fresh
        if target.exists():
            target.rename(Path(place) / "old")
        fresh.rename(target)
