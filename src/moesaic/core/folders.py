"""Folders: where caches lie, and output that appears whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """Where what can be made again is kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "moesaic"


@contextmanager
def whole_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """An empty folder beside `path` to fill, which takes its place at the end: an error leaves
    what was there before."""
    target = Path(path)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as place:
        fresh = Path(place) / "new"
        fresh.mkdir()
        yield fresh
        _replace(target, fresh, Path(place) / "old")


def _replace(target: Path, fresh: Path, old: Path) -> None:
    try:
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    except BaseException:  # wherever it came: `old` is about to be removed
        if old.exists() and not target.exists():
            old.rename(target)
        raise
