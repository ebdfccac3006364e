"""The bytes of a .moet file: constants, chunk heads and the packing of blocks.

    magic (8) | version u16 | header length u32 | CRC32 u32 | header JSON
    then chunks: kind u8 | tokens u64 | payload length u32 | CRC32 u32 | payload
    the last chunk is END, whose token count is the file's total; nothing follows it

All numbers are little-endian. Each CRC covers what it stands behind and what it stands before,
so that no byte of the file can change unnoticed. Opens no files itself.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import BadTrace
from moesaic.workloads.block import RoutingBlock, columns_of
from moesaic.workloads.header import TraceHeader

MAGIC = b"\x93MOETRC\n"  # the first byte is no text, the last one breaks if newlines are changed
VERSION = 2  # what is written; 1 knows neither counts nor confidence
READABLE = (1, VERSION)
PREAMBLE = struct.Struct("<8sHI")
CHUNK = struct.Struct("<BQI")
CRC = struct.Struct("<I")
TOKENS_CHUNK = 1
END_CHUNK = 0xFF
MAX_HEADER_BYTES = 1 << 24
MAX_CHUNK_BYTES = 1 << 28  # of one unpacked payload: a bound on what a reader must hold
ZLIB_LEVEL = 6


class ChunkHead(NamedTuple):
    kind: int
    tokens: int
    length: int


def crc32(*parts: bytes) -> bytes:
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return CRC.pack(value)


def pack_header(header: TraceHeader) -> bytes:
    text = header.to_json().encode()
    assert len(text) <= MAX_HEADER_BYTES, "trace metadata is too large"
    preamble = PREAMBLE.pack(MAGIC, VERSION, len(text))
    return preamble + crc32(preamble, text) + text


def pack_chunk(kind: int, tokens: int, payload: bytes) -> bytes:
    head = CHUNK.pack(kind, tokens, len(payload))
    return head + crc32(head, payload) + payload


def payload_size(header: TraceHeader, tokens: int) -> int:
    """Unpacked bytes of a chunk of so many tokens."""
    return sum(
        np.dtype(dtype).itemsize * _product(shape) for _, dtype, shape in columns_of(header, tokens)
    )


def tokens_per_chunk(header: TraceHeader, chunk_bytes: int) -> int:
    """How many tokens make a chunk of about this size; at least one."""
    return max(1, chunk_bytes // payload_size(header, 1))


def pack_block(block: RoutingBlock, header: TraceHeader) -> bytes:
    """The columns one after another, compressed; half floats as two byte planes, because their
    high bytes repeat and their low bytes do not."""
    raw = bytearray()
    for name, dtype, _ in columns_of(header, len(block)):
        array = np.ascontiguousarray(getattr(block, name), dtype=dtype)
        raw += _byte_planes(array) if dtype == "<f2" else array.tobytes()
    return zlib.compress(bytes(raw), ZLIB_LEVEL)


def unpack_block(
    payload: bytes, tokens: int, header: TraceHeader, path: object, chunk: int
) -> RoutingBlock:
    where = f"chunk {chunk}"
    expected = payload_size(header, tokens)
    if expected > MAX_CHUNK_BYTES:
        raise BadTrace(path, where, f"must unpack to at most {MAX_CHUNK_BYTES} bytes")
    raw = _inflate(payload, expected, path, where)
    columns: dict[str, NDArray[Any]] = {}
    offset = 0
    for name, dtype, shape in columns_of(header, tokens):
        count = _product(shape)
        size = count * np.dtype(dtype).itemsize
        piece = np.frombuffer(raw, dtype=np.uint8, count=size, offset=offset)
        if dtype == "<f2":
            piece = np.ascontiguousarray(piece.reshape(2, count).T).reshape(-1)
        columns[name] = piece.view(dtype).reshape(shape)
        offset += size
    return RoutingBlock(**columns)


def _inflate(payload: bytes, expected: int, path: object, where: str) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        raw = unpacker.decompress(payload, expected + 1)  # one more shows that there is more
    except zlib.error as error:
        raise BadTrace(path, where, f"cannot be unpacked ({error})") from error
    if len(raw) != expected or not unpacker.eof or unpacker.unused_data:
        raise BadTrace(path, where, f"must unpack to {expected} bytes, gives {len(raw)}")
    return raw


def _byte_planes(array: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(array.reshape(-1).view(np.uint8).reshape(-1, 2).T).tobytes()


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result
