"""Files that users give: text or lines of JSON, compressed or not. A line that cannot be used is
reported with its place, and does not keep others from being used."""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from moesaic.core.errors import BadFile

_SAMPLE = 1 << 20


class Unfit(ValueError):
    """Why a line cannot be used."""


class Line(NamedTuple):
    number: int
    fields: Mapping[str, Any] | None
    why: str = ""  # there are no fields

    def text(self, name: str) -> str:
        """A field that must be a text with something in it."""
        if self.fields is None:
            raise Unfit(self.why)
        value = self.fields.get(name)
        if name not in self.fields:
            raise Unfit(f"the field {name!r} is missing")
        if not isinstance(value, str) or not value.strip():
            raise Unfit(f"the field {name!r} is {json.dumps(value)[:40]}, expected text")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Unfit(f"the field {name!r} has half of a surrogate pair") from None
        return value


def read_text(path: Path) -> str:
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
    try:
        with openers.get(path.suffix.lower(), open)(path, "rb") as stream:
            content: bytes = stream.read()
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"is not UTF-8 text ({error.reason} at byte {error.start})"
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        what = f"cannot be decompressed ({error}); fetch it again"
    raise BadFile(f"the file {str(path)!r} {what}")


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file of JSON objects; empty lines do not count."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            yield Line(number, None, "it is not JSON")
            continue
        if isinstance(fields, dict):
            yield Line(number, fields)
        else:
            yield Line(number, None, "it is not a JSON object")


def is_lines(path: Path) -> bool:
    """Whether the name promises lines of JSON."""
    return any(ending in (".jsonl", ".ndjson") for ending in path.suffixes)


def digest(path: Path) -> str:
    """Tells a file from another of the same name: its length, its beginning and its end."""
    size = path.stat().st_size
    found = sha256(str(size).encode())
    with path.open("rb") as stream:
        found.update(stream.read(_SAMPLE))
        stream.seek(max(0, size - _SAMPLE))
        found.update(stream.read(_SAMPLE))
    return found.hexdigest()[:16]
