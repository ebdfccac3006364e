"""Blocks of the KV cache in main memory: what a GPU has no more room for, and comes back over the
link instead of being computed again.

A block is one piece here, all layers of it, and one row per layer there: two copies of rows bring
all of it, without a kernel and without memory in between.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from moesaic.kernels.gpu.driver import Rows, copy_rows
from moesaic.machines.real.pinned import Pinned


class HostBlocks:
    def __init__(self, parts: Sequence[torch.Tensor], blocks: int) -> None:
        """`parts` [layers, blocks, tokens, width] of the KV cache; `blocks`: as many are here. On a
        GPU memory is locked for its copies, until `close`."""
        self._parts, self.blocks = tuple(parts), blocks
        self._kept = tuple(
            torch.empty((blocks, len(part), *part.shape[2:]), dtype=part.dtype) for part in parts
        )
        self._locked: list[Pinned] = []
        self._stream: torch.cuda.Stream | None = None
        if self._parts[0].is_cuda:
            self._stream = torch.cuda.Stream(self._parts[0].device)
            for kept in self._kept:
                self._locked.append(Pinned(kept.data_ptr(), kept.nbytes))
            # Before the memory is freed, also where `close` is never called.
            self._finalizer = weakref.finalize(self, _close, self._locked)

    @property
    def nbytes(self) -> int:
        return sum(int(kept.nbytes) for kept in self._kept)

    def store(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks of the KV cache, as computed so far, to blocks here, in this order."""
        self._copy(pairs, to_host=True)

    def load(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks from here, the second of each pair, to blocks of the KV cache."""
        self._copy(pairs, to_host=False)

    def close(self) -> None:
        _close(self._locked)

    def _copy(self, pairs: Sequence[tuple[int, int]], to_host: bool) -> None:
        if self._stream is None:
            for part, kept in zip(self._parts, self._kept, strict=True):
                for block, here in pairs:
                    ends = (kept[here], part[:, block])
                    target, source = ends if to_host else reversed(ends)
                    target.copy_(source)
            return
        # Not in the current stream: a step that is launched ahead may be waiting there.
        self._stream.wait_stream(torch.cuda.current_stream())
        for part, kept in zip(self._parts, self._kept, strict=True):
            width, pitch = part[0, 0].nbytes, part[0].nbytes
            for block, here in pairs:
                inside = Rows(kept.data_ptr() + here * len(part) * width, width)
                ends = (inside, Rows(part.data_ptr() + block * width, pitch))
                target, source = ends if to_host else reversed(ends)
                copy_rows(target, source, width, len(part), self._stream.cuda_stream)
        self._stream.synchronize()


def _close(locked: Sequence[Pinned]) -> None:
    for each in locked:
        each.close()
