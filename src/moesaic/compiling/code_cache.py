"""Where code compiled from a folder of sources is kept between runs.

The folder's name is a hash of all its sources: a compiler that looks only at the file a function
stands in would go on using old code of the functions it calls."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

from moesaic.core.caches import writable_cache

KEPT = 4  # folders of compiled code for other versions of the sources


def code_cache(sources: Path, kind: str) -> str | None:
    """The cache folder for code compiled from what lies under `sources`; None where nothing can
    be kept."""
    if (kept_in := writable_cache()) is None:
        return None
    digest = sha256()
    for source in sorted(sources.rglob("*.py")):
        digest.update(source.read_bytes())
    folder = kept_in / kind / digest.hexdigest()[:16]
    _forget_old_ones(folder)
    return str(folder)


def holds_code(folder: str | None) -> bool:
    """Whether an earlier run has left compiled code there."""
    return folder is not None and any(Path(folder).rglob("*.nbc"))


def _forget_old_ones(folder: Path) -> None:
    """Other sources' code is worth keeping for a while (two checkouts), not for ever."""
    with suppress(OSError):
        others = [f for f in folder.parent.iterdir() if f != folder]
        for old in sorted(others, key=lambda f: -f.stat().st_mtime)[KEPT:]:
            rmtree(old, ignore_errors=True)
