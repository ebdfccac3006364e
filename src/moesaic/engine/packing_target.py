"""Where a packed model is to be written: refused before anything is fetched or read, if it cannot
be. Needs no torch."""

from __future__ import annotations

import os
from pathlib import Path

from moesaic.core.errors import ImpossibleSetting


def packing_target(path: Path) -> Path:
    """The directory that will appear. A link is followed: it leads to the disk that is meant."""
    target = path.resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ImpossibleSetting(
            f"{str(target)!r} is there already: give a directory that is not, or remove it"
        )
    if target.exists() and (target == Path.cwd() or os.path.ismount(target)):
        raise ImpossibleSetting(
            f"{str(target)!r} is the current directory or that of a disk, which cannot be "
            "replaced: give a new name in it"
        )
    if not target.parent.is_dir():
        raise ImpossibleSetting(f"there is no directory {str(target.parent)!r}: create it first")
    if not os.access(target.parent, os.W_OK):
        raise ImpossibleSetting(f"{str(target.parent)!r} is not writable")
    return target
