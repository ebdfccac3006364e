"""Blocks of the KV cache in main memory: what a GPU has no more room for, and comes back over the
link instead of being computed again.

Both have the layers of a block equally far apart: blocks that lie side by side here and there are
one copy of rows, a row per layer, without a kernel and without memory in between.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from moesaic.kernels.gpu.driver import Rows, copy_rows
from moesaic.machines.real.pinned import Pinned


class HostBlocks:
    def __init__(self, parts: Sequence[torch.Tensor], blocks: int) -> None:
        """`parts` [layers, blocks, tokens, width] of the KV cache; `blocks`: as many are here. On a
        GPU memory is locked for its copies, until `close`."""
        self._parts, self.blocks = tuple(parts), blocks
        self._kept = tuple(
            torch.empty((len(part), blocks, *part.shape[2:]), dtype=part.dtype) for part in parts
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
        """Copy blocks of the KV cache, as computed so far, to other blocks here."""
        self._copy(pairs, to_host=True)

    def load(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks from here, the second of each pair, to blocks of the KV cache."""
        self._copy(pairs, to_host=False)

    def close(self) -> None:
        _close(self._locked)

    def _copy(self, pairs: Sequence[tuple[int, int]], to_host: bool) -> None:
        runs = [*_runs(pairs)]
        if self._stream is None:
            for part, kept in zip(self._parts, self._kept, strict=True):
                for run in runs:
                    ends = (kept[:, run.here : run.here + run.count], part[:, run.block : run.end])
                    target, source = ends if to_host else reversed(ends)
                    target.copy_(source)
            return
        # Not in the current stream: a step that is launched ahead may be waiting there.
        self._stream.wait_stream(torch.cuda.current_stream())
        for part, kept in zip(self._parts, self._kept, strict=True):
            width = part[0, 0].nbytes
            for run in runs:
                ends = (_row(kept, run.here), _row(part, run.block))
                target, source = ends if to_host else reversed(ends)
                copy_rows(target, source, run.count * width, len(part), self._stream.cuda_stream)
        self._stream.synchronize()


@dataclass(slots=True)
class _Run:
    """Blocks that follow each other in the KV cache and here."""

    block: int
    here: int
    count: int = 1

    @property
    def end(self) -> int:
        return self.block + self.count


def _runs(pairs: Sequence[tuple[int, int]]) -> Iterator[_Run]:
    run: _Run | None = None
    for block, here in sorted(pairs):
        if run is not None and (block, here) == (run.end, run.here + run.count):
            run.count += 1
            continue
        if run is not None:
            yield run
        run = _Run(block, here)
    if run is not None:
        yield run


def _row(blocks: torch.Tensor, first: int) -> Rows:
    """From this block on, a row per layer."""
    layer = blocks[0]
    return Rows(blocks.data_ptr() + first * layer[0].nbytes, layer.nbytes)


def _close(locked: Sequence[Pinned]) -> None:
    for each in locked:
        each.close()
