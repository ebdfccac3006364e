"""Folders: where caches lie, output that appears whole or not at all, and temporary ones, which the
next run removes where a killed process has left them."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time

from moesaic.core.files import naming_full_disk

_OLD = "old"
_NEW_S = 60.0  # between its making and its lock a folder has no owner


def cache_folder() -> Path:
    """The configured folder for what can be made again: MOESAIC_CACHE, else `moesaic` in
    XDG_CACHE_HOME or ~/.cache. `caches.writable_cache` replaces it where it cannot be written."""
    if chosen := os.environ.get("MOESAIC_CACHE"):
        return Path(chosen).absolute()
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches, "moesaic").absolute()
    return Path(os.path.expanduser("~/.cache"), "moesaic")  # as it is where there is no home


@contextmanager
def whole_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """An empty folder beside `path` to fill, which takes its place at the end: an error leaves
    what was there before, and one of a full disk names `path`. What a killed process has left of
    the same folder is removed first."""
    target = Path(path)
    for left in _left_over(target.parent, _prefix(target)):
        if (left / _OLD).exists() and not target.exists():  # killed between two renamings
            (left / _OLD).rename(target)
        shutil.rmtree(left, ignore_errors=True)
    with temporary_folder(_prefix(target), target.parent) as place:
        fresh = place / "new"
        fresh.mkdir()
        with naming_full_disk(target):
            yield fresh
        _replace(target, fresh, place / _OLD)


@contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """An empty folder that is removed at the end. Those of killed processes with the same prefix
    are removed first: a folder is locked as long as it is in use."""
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    for left in _left_over(parent, prefix):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as name:
        handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # not every file system knows locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(handle)


def _left_over(parent: Path, prefix: str) -> Iterator[Path]:
    """Folders of our own that no process has locked, nor made so lately that it may be about to."""
    names: list[str] = []
    with suppress(OSError):
        names = [name for name in os.listdir(parent) if name.startswith(prefix)]
    for name in names:
        with suppress(OSError):
            handle = os.open(parent / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                found = os.fstat(handle)
                if found.st_uid == os.getuid() and found.st_mtime < time() - _NEW_S:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    yield parent / name
            finally:
                os.close(handle)


def _prefix(target: Path) -> str:
    return f".{target.name}."


def _replace(target: Path, fresh: Path, old: Path) -> None:
    try:
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    except BaseException:  # wherever it came: `old` is about to be removed
        if old.exists() and not target.exists():
            old.rename(target)
        raise
