"""The folder that caches are really written to: the configured one, a temporary one where that
cannot be written (a container without a home), or none.

What lies in it is loaded as machine code, so the temporary folder must be the user's alone."""

from __future__ import annotations

import logging
import multiprocessing
import os
import stat
import tempfile
from functools import cache
from pathlib import Path

from moesaic.core.folders import cache_folder

_log = logging.getLogger(__name__)


def writable_cache() -> Path | None:
    """The folder to keep caches in, which exists; None where there is none. The first answer
    that is not the configured folder is announced."""
    try:
        temporary = tempfile.gettempdir()
    except OSError:
        temporary = None
    return _writable_cache(cache_folder(), temporary)


@cache
def _writable_cache(configured: Path, temporary: str | None) -> Path | None:
    problem = why_not_writable(configured)
    if problem is None:
        return configured
    why = f"nothing can be kept in {configured} ({problem})"
    remedy = "set MOESAIC_CACHE to a folder that you may write to"
    own = None if temporary is None else _own_folder(temporary)
    if own is None:
        announce(f"{why} or in a temporary folder: every run compiles its planners; {remedy}")
    else:
        announce(f"{why}: compiled planners are kept in {own}; {remedy}")
    return own


def announce(words: str) -> None:
    """Write a line to standard error (unless the caller has configured logging), once for all
    processes of a command: those that it starts stay silent."""
    if multiprocessing.parent_process() is None:
        _log.warning(words)


def why_not_writable(folder: Path) -> str | None:
    """Make the folder where it is missing, and write a file in it; in words why that failed."""
    if not folder.is_absolute():
        return "this user has no home folder"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _own_folder(parent: str) -> Path | None:
    """A folder that no other user can have filled or can write to. Its name is the same for every
    run of this user; a folder of that name that belongs to another user is not used."""
    folder = Path(parent, f"moesaic-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        around, found = os.stat(parent), folder.lstat()
    except OSError:
        return None
    others = stat.S_IWGRP | stat.S_IWOTH
    steady = not around.st_mode & others or around.st_mode & stat.S_ISVTX  # others cannot rename it
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    if not (steady and private and found.st_uid == os.getuid()) or why_not_writable(folder):
        return None
    return folder
