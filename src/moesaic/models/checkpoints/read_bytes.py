"""Bytes of a file into memory of our own, not mapped: what was read and converted does not stay
behind as mapped pages, so loading a model takes little more memory than the model.
"""

from __future__ import annotations

from pathlib import Path

import torch

from moesaic.core.errors import BadCheckpoint
from moesaic.core.files import reading


def read_bytes(path: Path, start: int, size: int, name: str) -> torch.Tensor:
    """uint8 [size]; `name` is what is read, for messages."""
    raw = torch.empty(size, dtype=torch.uint8)
    buffer, done = memoryview(raw.numpy()), 0
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while done < size:  # one read may give less than asked, and never more than 2 GiB
            with reading(path, BadCheckpoint, name):
                count = file.readinto(buffer[done:])
            if not count:
                raise BadCheckpoint(path, name, "the file ended early: it changed while being read")
            done += count
    return raw
