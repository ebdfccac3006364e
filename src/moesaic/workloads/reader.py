"""Streams a .moet file, one chunk in memory at a time, checking every byte of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import IO

from moesaic.core.errors import BadTrace
from moesaic.workloads.block import RoutingBlock, check_block, check_order
from moesaic.workloads.format import (
    CHUNK,
    CRC,
    END_CHUNK,
    MAGIC,
    MAX_HEADER_BYTES,
    PREAMBLE,
    READABLE,
    TOKENS_CHUNK,
    ChunkHead,
    crc32,
    unpack_block,
)
from moesaic.workloads.header import TraceHeader

PathLike = str | os.PathLike[str]


class TraceReader:
    """A context manager: `header` is known at once, iterating gives the blocks, once."""

    def __init__(self, path: PathLike) -> None:
        self.path = path
        self._stream: IO[bytes] = open(path, "rb")  # noqa: SIM115 (closed in close())
        try:
            self._left = os.fstat(self._stream.fileno()).st_size
            self.header = self._read_header()
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> TraceReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()

    def __iter__(self) -> Iterator[RoutingBlock]:
        total, last_key, chunk = 0, -1, 0
        while True:
            head, payload = self._read_chunk(chunk)
            if head.kind == END_CHUNK:
                self._check_end(head, total)
                return
            if head.kind != TOKENS_CHUNK:
                raise BadTrace(self.path, f"chunk {chunk}", f"has unknown kind {head.kind}")
            block = unpack_block(payload, head.tokens, self.header, self.path, chunk)
            check_block(block, self.header, self.path)
            last_key = check_order(block, last_key, self.path)
            total += len(block)
            chunk += 1
            yield block

    def _read_header(self) -> TraceHeader:
        start = self._read(len(MAGIC), "magic")
        if start != MAGIC:
            raise BadTrace(self.path, "magic", f"must begin with {MAGIC!r}: not a .moet trace")
        preamble = start + self._read(PREAMBLE.size - len(MAGIC), "version")
        _, version, length = PREAMBLE.unpack(preamble)
        if version not in READABLE:
            readable = " or ".join(map(str, READABLE))
            raise BadTrace(self.path, "version", f"must be {readable}, is {version}")
        if length > MAX_HEADER_BYTES:
            raise BadTrace(self.path, "header length", f"must be at most {MAX_HEADER_BYTES}")
        checksum = self._read(CRC.size, "header checksum")
        text = self._read(length, "header")
        if crc32(preamble, text) != checksum:
            raise BadTrace(self.path, "header", "does not match its checksum: the file is damaged")
        return TraceHeader.from_json(text, self.path, version)

    def _read_chunk(self, chunk: int) -> tuple[ChunkHead, bytes]:
        where = f"chunk {chunk}"
        packed = self._read(CHUNK.size, where)
        head = ChunkHead(*CHUNK.unpack(packed))
        checksum = self._read(CRC.size, where)
        payload = self._read(head.length, where)
        if crc32(packed, payload) != checksum:
            raise BadTrace(self.path, where, "does not match its checksum: the file is damaged")
        return head, payload

    def _check_end(self, head: ChunkHead, total: int) -> None:
        if head.tokens != total:
            raise BadTrace(self.path, "end", f"announces {head.tokens} tokens, {total} were found")
        if head.length or self._left:
            raise BadTrace(self.path, "end", "must be the last bytes of the file")

    def _read(self, size: int, where: str) -> bytes:
        """Exactly `size` bytes; asks the size of the file first, so that a damaged length cannot
        ask for more memory than the file could fill."""
        if size > self._left:
            message = f"the file ends {size - self._left} bytes too early: it is truncated"
            raise BadTrace(self.path, where, message)
        data = self._stream.read(size)
        if len(data) != size:
            raise BadTrace(self.path, where, "the file became shorter while it was read")
        self._left -= size
        return data
