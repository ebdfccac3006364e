"""The blocks of a packed file where they are: mapped, not read. The pages are the file's own in the
system's cache, the same for every process that maps it, and no process can write them."""

from __future__ import annotations

import mmap
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

_POPULATE_READ = 22  # MADV_POPULATE_READ, Linux 5.14; Python does not name it


class MappedBlocks:
    def __init__(self, path: Path, data_start: int) -> None:
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self._start = data_start
        # Systems that can, use large pages for files.
        with suppress(OSError, ValueError, AttributeError):
            self._memory.madvise(mmap.MADV_HUGEPAGE)

    def blocks(self, size: int) -> torch.Tensor:
        """The bytes after the header. PyTorch knows no read-only tensors and warns of that."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            return torch.frombuffer(self._memory, dtype=torch.uint8, offset=self._start, count=size)

    def populate(self, start: int, size: int) -> None:
        """Have a range of the blocks in memory and in the page tables: the first tokens then wait
        for neither the disk nor page faults."""
        first = (self._start + start) // mmap.PAGESIZE * mmap.PAGESIZE
        length = self._start + start + size - first
        try:
            self._memory.madvise(_POPULATE_READ, first, length)
        except OSError:  # an older system: touch every page
            bytes_ = np.frombuffer(self._memory, dtype=np.uint8)
            bytes_[first : first + length : mmap.PAGESIZE].max()
