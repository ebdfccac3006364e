"""Arrays of an .npz archive, refused by its headers before anything is unpacked.

An archive is unpacked whole, and a few megabytes can unpack to more than a machine has."""

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from moesaic.core.errors import BadTrace

PathLike = str | os.PathLike[str]
MAX_UNPACKED_BYTES = 2 << 30
# What numpy and zipfile raise on damaged or hostile archives, one that is a bare array included.
_DAMAGED = (
    ArithmeticError,
    AttributeError,
    EOFError,
    KeyError,
    MemoryError,
    OSError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
_HEADERS: dict[tuple[int, int], Callable[..., Any]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}


def read_arrays(path: PathLike, wanted: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """Those of the wanted arrays that are there (all of them: None)."""
    try:
        names = _checked_names(path, wanted)
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in names}
    except _DAMAGED as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise BadTrace(path, "archive", f"cannot be read ({error})") from error


def _checked_names(path: PathLike, wanted: Collection[str] | None) -> list[str]:
    names, total = [], 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if wanted is not None and name not in wanted:
                continue
            with archive.open(member) as stream:
                total += _array_bytes(path, name, stream, member.file_size)
            names.append(name)
    if total > MAX_UNPACKED_BYTES:
        raise BadTrace(
            path,
            "archive",
            f"unpacks to {total / 1e9:.1f} GB, and at most {MAX_UNPACKED_BYTES / 1e9:.1f} GB are "
            "unpacked at once: split it into several files, smaller types first (uint8 or uint16 "
            "for experts), and make one trace of them with `moesaic trace import A.npz B.npz -o "
            "all.moet`, which is read in pieces",
        )
    return names


def _array_bytes(path: PathLike, name: str, stream: IO[bytes], stored: int) -> int:
    """What the array needs in memory; its header must agree with what the archive holds."""
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise BadTrace(path, name, f"must be an array of .npy version 1 or 2, is {version}")
    shape, _, dtype = _HEADERS[version](stream)
    if dtype.hasobject:
        raise BadTrace(path, name, "must hold numbers or text, not Python objects")
    needed: int = math.prod(shape) * dtype.itemsize
    held = stored - stream.tell()
    if needed != held:
        raise BadTrace(path, name, f"must have {needed} bytes by its header, has {held}")
    return needed
