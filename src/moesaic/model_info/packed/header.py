"""The file of a packed model's routed experts: a header, then every expert's block as its kernel
has packed it, layer after layer. The blocks are opaque here: the header names their layout.

    8 bytes   magic
    4 bytes   version of this format, little endian, as the next
    4 bytes   length of the header
    n bytes   the header, JSON
    32 bytes  SHA-256 of all before
    zeros     up to `DATA_START`
    blocks    [layers, experts, block_bytes]

Reads no blocks, needs no torch.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, get_type_hints

from moesaic.core.errors import BadCheckpoint
from moesaic.core.files import has_regular_file, reading
from moesaic.core.parsing import parse_json, short

EXPERTS = "experts.moepack"
DENSE = "model.safetensors"  # everything else, beside it
MAGIC = b"MOEPACK\n"
VERSION = 2
DATA_START = 2 << 20  # a huge page: blocks begin at one, and the header fits before
_NUMBERS = struct.Struct("<8sII")
_DIGEST = 32
_LARGEST = 1 << 62  # of any number in a header


@dataclass(frozen=True, slots=True)
class PackedHeader:
    layout: str  # of the blocks: a kernel's `layout`
    dtype: str  # of the experts
    kernel: str  # which kernels have packed them; others with the same layout compute from them
    shape: dict[str, Any]  # of an expert: the fields of `ExpertShape`
    layers: int  # with routed experts
    experts: int  # per layer
    block_bytes: int
    dense_bytes: int  # size of the file with all other weights
    dense_digest: str  # of that file's table of contents
    source: str  # name of the model it was made from
    fingerprint: str  # of the model's files
    made_by: str  # version of the package
    checksums: tuple[int, ...]  # CRC-32 of every layer's blocks
    others: dict[str, int]  # CRC-32 of every other file of the folder, by name

    @property
    def layer_bytes(self) -> int:
        return self.experts * self.block_bytes

    @property
    def bytes(self) -> int:
        """The bytes of all blocks."""
        return self.layers * self.layer_bytes


def is_packed(folder: Path) -> bool:
    return has_regular_file(folder / EXPERTS, BadCheckpoint)


def encoded(header: PackedHeader) -> bytes:
    """Everything before the blocks."""
    text = json.dumps(asdict(header)).encode()
    start = _NUMBERS.pack(MAGIC, VERSION, len(text)) + text
    whole = start + sha256(start).digest()
    assert len(whole) <= DATA_START, "the header has a few names and a number per layer"
    return whole.ljust(DATA_START, b"\0")


def read_header(folder: Path) -> PackedHeader:
    """Checked: what a file is not, or has not got, is BadCheckpoint with the field's name."""
    path = folder / EXPERTS
    with path.open("rb") as file, reading(path, BadCheckpoint):
        start = file.read(_NUMBERS.size)
        if len(start) < _NUMBERS.size or not start.startswith(MAGIC):
            raise BadCheckpoint(path, "magic", "this is not a file of packed experts")
        _, version, length = _NUMBERS.unpack(start)
        if version != VERSION:
            what = f"is {version}, this release reads {VERSION}; {_AGAIN}"
            raise BadCheckpoint(path, "version", what)
        if length > DATA_START - _NUMBERS.size - _DIGEST:
            raise BadCheckpoint(path, "header", f"cannot be {length} bytes long")
        text, digest = file.read(length), file.read(_DIGEST)
    if sha256(start + text).digest() != digest:
        raise BadCheckpoint(path, "header", f"its checksum is wrong: it was damaged; {_AGAIN}")
    header = _header(path, parse_json(text, BadCheckpoint, path, "header", finite=True))
    size, expected = path.stat().st_size, DATA_START + header.bytes
    if size != expected:
        what = f"expected {expected} bytes, it has {size}: it was truncated or changed; {_AGAIN}"
        raise BadCheckpoint(path, "file", what)
    return header


_AGAIN = "pack the model again with `moesaic pack`"


def _header(path: Path, content: Any) -> PackedHeader:
    """Unknown fields are of a later release, which would have another version."""
    types = get_type_hints(PackedHeader)
    if not isinstance(content, dict) or content.keys() != types.keys():
        raise BadCheckpoint(path, "header", f"expected the fields {', '.join(types)}")
    for field in fields(PackedHeader):
        value, kind = content[field.name], types[field.name]
        if not (_is_text(value) if kind is str else _is_count(value) if kind is int else True):
            what = "some text" if kind is str else "a whole number above 0"
            raise BadCheckpoint(path, field.name, f"expected {what}, not {short(value)}")
    if not isinstance(content["shape"], dict):
        raise BadCheckpoint(path, "shape", f"expected fields, not {short(content['shape'])}")
    checksums = content["checksums"]
    right = isinstance(checksums, list) and all(type(each) is int for each in checksums)
    if not right or len(checksums) != content["layers"]:
        raise BadCheckpoint(path, "checksums", "expected one number for every layer")
    others = content["others"]
    if not isinstance(others, dict) or not all(_is_file_sum(*each) for each in others.items()):
        raise BadCheckpoint(path, "others", "expected a number for every name of a file")
    return PackedHeader(**{**content, "checksums": tuple(checksums)})


def _is_file_sum(name: str, value: Any) -> bool:
    return Path(name).name == name and type(value) is int


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < _LARGEST
