"""Output files appear whole or not at all, and never in the place of a device or a pipe; files of a
model are read where they are regular ones."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from moesaic.core.errors import FileError, ImpossibleSetting

_UNFINISHED = ".part"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of writing, which know no name
_SPECIAL = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


@contextmanager
def whole_file(path: str | os.PathLike[str], mode: str = "wb") -> Iterator[IO[Any]]:
    """Write beside `path` and move into place at the end: an error leaves no partial file. What a
    killed process has left of the same file is removed first."""
    target = Path(path)
    refuse_special(target)
    _remove_unfinished(target)
    try:
        handle, name = _unfinished(target)
    except OSError as error:  # which names a file the user has not asked for
        raise OSError(error.errno, error.strerror, str(target)) from None
    try:
        with os.fdopen(handle, mode) as stream:
            yield stream
            stream.flush()
            os.fchmod(stream.fileno(), 0o666 & ~_umask())
            refuse_special(target)  # it may have come since
            os.replace(name, target)  # before closing, which ends the lock
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _with_name(error, target) from None
        raise


@contextmanager
def naming_full_disk(path: str | os.PathLike[str]) -> Iterator[None]:
    """Writing to a full disk fails without a name; here it is an error of `path`."""
    try:
        yield
    except OSError as error:
        raise _with_name(error, path) from None


def _with_name(error: OSError, path: str | os.PathLike[str]) -> OSError:
    if error.errno not in FULL or error.filename is not None:
        return error
    return OSError(error.errno, error.strerror, str(path))


def refuse_special(path: str | os.PathLike[str], option: str = "output") -> None:
    """Refuse to replace anything but a regular file: root could move a file over a device node."""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
    except OSError:  # nothing there, or nothing that can be looked at
        return
    if kind != stat.S_IFREG:
        what = _SPECIAL.get(kind, "no regular file")
        raise ImpossibleSetting(f"{option} {str(path)!r} is {what}: give the name of a file")


def has_regular_file(path: Path, kind: type[FileError]) -> bool:
    """Whether there is a file with this name. Anything else with this name is an error, and not
    an absent file: reading a pipe would wait for its writer, a device may never end."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            what = f"is a link to {os.readlink(path)!r}, which does not exist: fetch it again"
            raise kind(path, "file", what) from None
        return False
    if not stat.S_ISREG(mode):
        what = _SPECIAL.get(stat.S_IFMT(mode), "no regular file")
        raise kind(path, "file", f"is {what}, expected a regular file")
    return True


@contextmanager
def reading(path: Path, kind: type[FileError], field: str = "file") -> Iterator[None]:
    """Errors while an open file is read do not name it; here they are a `kind` of error."""
    try:
        yield
    except OSError as error:
        raise kind(path, field, f"cannot be read: {error.strerror}") from None


def _unfinished(target: Path) -> tuple[int, str]:
    """A new file beside `target`, locked as long as it is open. Between its creation and its lock
    another process may have taken it for a leftover: then the next one."""
    while True:
        handle, name = tempfile.mkstemp(_UNFINISHED, _prefix(target), target.parent)
        with suppress(OSError):  # not every file system knows locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, name
        os.close(handle)


def _remove_unfinished(target: Path) -> None:
    """What no process has locked, no process is writing."""
    with suppress(OSError):
        for name in os.listdir(target.parent):
            if name.startswith(_prefix(target)) and name.endswith(_UNFINISHED):
                _remove_unlocked(target.parent / name)


def _remove_unlocked(path: Path) -> None:
    with suppress(OSError), path.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()


def _prefix(target: Path) -> str:
    return f".{target.name}."


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
