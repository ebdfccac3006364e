"""Writes a .moet file, whole or not at all; the same tokens always give the same bytes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType

from moesaic.core.files import whole_file
from moesaic.workloads.block import RoutingBlock, check_block, check_order, join
from moesaic.workloads.format import (
    END_CHUNK,
    TOKENS_CHUNK,
    pack_block,
    pack_chunk,
    pack_header,
    tokens_per_chunk,
)
from moesaic.workloads.header import TraceHeader
from moesaic.workloads.reader import PathLike

CHUNK_BYTES = 1 << 20  # unpacked: large enough to compress well, small enough to stream


class TraceWriter:
    """A context manager. Chunks are cut by size alone, however the tokens were handed over, so
    the bytes of the file depend on its content only. Leaving with an error leaves no file."""

    def __init__(self, path: PathLike, header: TraceHeader, chunk_bytes: int = CHUNK_BYTES) -> None:
        header.check(path)
        self.path = path
        self.header = header
        self.tokens = 0
        self._chunk_tokens = tokens_per_chunk(header, chunk_bytes)
        self._pending: list[RoutingBlock] = []
        self._pending_tokens = 0
        self._last_key = -1
        self._stack = ExitStack()

    def __enter__(self) -> TraceWriter:
        self._stream = self._stack.enter_context(whole_file(self.path))
        self._stream.write(pack_header(self.header))
        return self

    def write(self, block: RoutingBlock) -> None:
        check_block(block, self.header, self.path)
        self._last_key = check_order(block, self._last_key, self.path)
        self.tokens += len(block)
        self._pending.append(block)
        self._pending_tokens += len(block)
        if self._pending_tokens >= self._chunk_tokens:
            self._flush(keep=self._pending_tokens % self._chunk_tokens)

    def _flush(self, keep: int = 0) -> None:
        if not self._pending_tokens:
            return
        block = join(self._pending)
        end = len(block) - keep
        for start in range(0, end, self._chunk_tokens):
            piece = block.rows(slice(start, min(start + self._chunk_tokens, end)))
            self._stream.write(pack_chunk(TOKENS_CHUNK, len(piece), pack_block(piece, self.header)))
        self._pending = [block.rows(slice(end, None))] if keep else []
        self._pending_tokens = keep

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if error is not None:
            self._stack.__exit__(kind, error, tb)  # discards the file
            return
        with self._stack:
            self._flush()
            self._stream.write(pack_chunk(END_CHUNK, self.tokens, b""))


def write_trace(path: PathLike, header: TraceHeader, blocks: Iterable[RoutingBlock]) -> int:
    """Write all the blocks; returns the number of tokens."""
    with TraceWriter(path, header) as writer:
        for block in blocks:
            writer.write(block)
    return writer.tokens
