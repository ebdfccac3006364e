"""Where routing comes from: a file, an .npz of arrays, a generator, or memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from moesaic.core.errors import BadTrace
from moesaic.workloads.block import RoutingBlock
from moesaic.workloads.format import MAGIC
from moesaic.workloads.header import TraceHeader
from moesaic.workloads.reader import PathLike, TraceReader

ZIP_MAGIC = b"PK\x03\x04"  # an .npz is a zip archive


class TraceSource(Protocol):
    """A header and its tokens. `blocks()` starts from the first token each time it is called."""

    @property
    def header(self) -> TraceHeader: ...

    def blocks(self) -> Iterator[RoutingBlock]: ...


@runtime_checkable
class MadeAsRead(Protocol):
    """A source that makes its tokens and can leave out those that a batch never reads."""

    def blocks_of_batch(self, batch: int, steps: int, skip_tokens: int) -> Iterator[RoutingBlock]:
        """What so many decode steps of so many documents side by side read, after the first
        `skip_tokens` tokens: documents are cut where the last step ends."""


class TraceFile:
    """A .moet file: holds one chunk at a time, reopens the file for every pass."""

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        with TraceReader(path) as reader:
            self.header = reader.header

    def blocks(self) -> Iterator[RoutingBlock]:
        with TraceReader(self.path) as reader:
            yield from reader


class MemoryTrace:
    """Blocks that are already here."""

    def __init__(self, header: TraceHeader, blocks: Sequence[RoutingBlock]) -> None:
        self.header = header
        self._blocks = blocks

    def blocks(self) -> Iterator[RoutingBlock]:
        return iter(self._blocks)


class LazyTrace:
    """Blocks generated on every pass by a function without arguments."""

    def __init__(self, header: TraceHeader, make: Callable[[], Iterable[RoutingBlock]]) -> None:
        self.header = header
        self._make = make

    def blocks(self) -> Iterator[RoutingBlock]:
        return iter(self._make())


def open_trace(path: PathLike) -> TraceSource:
    """A trace by its content, whatever the file is called."""
    with open(path, "rb") as stream:
        start = stream.read(len(MAGIC))
    if start.startswith(ZIP_MAGIC):
        from moesaic.workloads.npz_trace import open_npz

        return open_npz(path)
    if start == MAGIC:
        return TraceFile(path)
    raise BadTrace(path, "magic", "must be a .moet trace or an .npz of one (see trace convert)")
