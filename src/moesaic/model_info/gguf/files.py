"""A model in GGUF: one file, or the parts `NAME-00001-of-00003.gguf` that it was split into."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from moesaic.core.errors import BadCheckpoint
from moesaic.core.files import has_regular_file
from moesaic.model_info.gguf.header import MAX_TENSORS, Header, TensorInfo, read_header

SUFFIX = ".gguf"
_PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"


def is_gguf(path: Path) -> bool:
    """Whether a file is GGUF by name, so that a damaged file is reported as one; or by content."""
    if not path.is_file():
        return False
    if path.suffix.lower() == SUFFIX:
        return True
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:  # the reader of that file reports it
        return False


def model_name(path: Path) -> str:
    part = _PART.fullmatch(path.name)
    return part["name"] if part else path.stem


def read_gguf(path: Path) -> Header:
    """The first part's metadata and the tensors of all parts."""
    first = read_header(path)
    count = _whole(first, _COUNT) or 1
    if count == 1:
        return first
    tensors = dict(first.tensors)
    for number, part in enumerate(_parts(first, count)):
        header = first if number == 0 else read_header(part)
        _check_part(header, number, count)
        if number:
            _add(tensors, header)
    stated = _whole(first, _TENSORS)
    if stated is not None and stated != len(tensors):
        what = f"says {stated} tensors, the {count} parts have {len(tensors)}"
        raise BadCheckpoint(path, _TENSORS, what)
    return replace(first, tensors=tensors)


def part_files(path: Path) -> list[Path]:
    """All files of the model whose first this is."""
    return sorted({path} | {info.path for info in read_gguf(path).tensors.values()})


def _parts(first: Header, count: int) -> list[Path]:
    path = first.path
    name = _PART.fullmatch(path.name)
    if name is None or int(name["count"]) != count:
        what = f"says the model has {count} parts, expected a name like NAME-00001-of-{count:05}"
        raise BadCheckpoint(path, _COUNT, what + SUFFIX)
    if _whole(first, _NUMBER) != 0:
        start = f"{name['name']}-00001-of-{count:05}{path.suffix}"
        raise BadCheckpoint(path, _NUMBER, f"this is not the first part: open {start}")
    parts = [
        path.with_name(f"{name['name']}-{number + 1:05}-of-{count:05}{path.suffix}")
        for number in range(count)
    ]
    for part in parts:
        if not has_regular_file(part, BadCheckpoint):
            raise BadCheckpoint(part, "file", f"the part is missing; {path.name} has {count} parts")
    return parts


def _check_part(header: Header, number: int, count: int) -> None:
    for key, expected in ((_NUMBER, number), (_COUNT, count)):
        found = _whole(header, key)
        if found != expected:
            raise BadCheckpoint(header.path, key, f"expected {expected}, not {found!r}")


def _add(tensors: dict[str, TensorInfo], header: Header) -> None:
    if len(tensors) + len(header.tensors) > MAX_TENSORS:
        what = f"more than {MAX_TENSORS} tensors in the parts so far; no model has as many"
        raise BadCheckpoint(header.path, "tensor_count", what)
    for name, info in header.tensors.items():
        if name in tensors:
            other = tensors[name].path.name
            raise BadCheckpoint(header.path, name, f"is in {other} too; expected it only once")
        tensors[name] = info


def _whole(header: Header, key: str) -> int | None:
    metadata: Mapping[str, Any] = header.metadata
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadCheckpoint(header.path, key, f"expected a whole number, not {value!r}")
    return value
