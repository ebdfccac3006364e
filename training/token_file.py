"""Tokens in a file: two bytes each, low and high bytes apart (they compress better), xz."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import numpy.typing as npt

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.files import whole_file

Tokens = npt.NDArray[np.uint16]
_EFFORT = 6  # higher levels take longer and save nothing


def write_tokens(path: Path, tokens: Tokens) -> None:
    planes = tokens.astype("<u2").view(np.uint8).reshape(-1, 2).T
    with whole_file(path) as stream:
        stream.write(lzma.compress(np.ascontiguousarray(planes).tobytes(), preset=_EFFORT))


def read_tokens(path: Path) -> Tokens:
    try:
        planes = np.frombuffer(lzma.decompress(path.read_bytes()), np.uint8).reshape(2, -1)
    except (OSError, lzma.LZMAError, ValueError) as error:
        raise ImpossibleSetting(
            f"{str(path)!r} is no token file ({error}): make it with python -m training.prepare."
        ) from None
    tokens: Tokens = np.ascontiguousarray(planes.T).view("<u2").reshape(-1).astype(np.uint16)
    return tokens
