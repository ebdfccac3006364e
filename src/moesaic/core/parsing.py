"""JSON and TOML from files that may be damaged or hostile: whatever they hold, the answer is plain
values of bounded depth and size, or one error that names the file.

The parsers of the standard library raise RecursionError on deep nesting and ValueError on long
integers, and accept what fails later: NaN, halves of surrogate pairs, integers beyond any count,
tables so deep that comparing or printing them fails. That of JSON also keeps the last of repeated
keys, where other readers may keep the first; here they are an error.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from typing import Any

from moesaic.core.errors import FileError
from moesaic.core.files import reading

MAX_DEPTH = 64
MAX_INTEGER_BITS = 128  # seeds may have as many; a float of it is finite
MAX_JSON_BYTES = 64 << 20
MAX_TOML_BYTES = 1 << 20
_MAX_DOTS = 100  # in a line: the time of tomllib is quadratic in the parts of a dotted key
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # only an escape can make one: bytes are UTF-8

Kind = type[FileError]


def read_bounded(path: Path, kind: Kind, limit: int = MAX_JSON_BYTES, field: str = "file") -> bytes:
    """A file's content, unless it is larger than any of its kind."""
    with path.open("rb") as stream, reading(path, kind, field):
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise kind(path, field, f"expected at most {limit} bytes, the file has more")
    return content


def read_json(path: Path, kind: Kind) -> Any:
    """The content of a JSON file."""
    return parse_json(read_bounded(path, kind), kind, path)


def parse_json(
    content: bytes | str, kind: Kind, path: object, field: str = "file", finite: bool = False
) -> Any:
    """`path` and `field` are only named in errors. `finite`: NaN and infinity are refused, which
    are no JSON but in files that Python has written."""
    text = _text(content, kind, path, field, "JSON")
    try:
        found = json.loads(text, object_pairs_hook=_table)
    except RecursionError:
        raise kind(path, field, _NESTED) from None
    except _RepeatedKey as error:
        where = error.key if field == "file" else f"{field}.{error.key}"
        raise kind(path, where, "this key is in the same JSON object twice") from None
    except json.JSONDecodeError as error:
        raise kind(path, field, f"expected JSON: {error}") from None
    except ValueError:
        raise kind(path, field, _LONG) from None
    _check(found, kind, path, field, finite, texts=_SURROGATE.search(text) is not None)
    return found


class _RepeatedKey(Exception):
    def __init__(self, key: str) -> None:
        self.key = key


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys: set[str] = set()
        for key, _ in pairs:
            if key in keys:
                raise _RepeatedKey(key)
            keys.add(key)
    return found


def parse_toml(content: bytes | str, kind: Kind, path: object) -> dict[str, Any]:
    """`path` is only named in errors."""
    text = _text(content, kind, path, "file", "TOML")
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > _MAX_DOTS:
            raise kind(path, f"line {number}", f"expected TOML: more than {_MAX_DOTS} dots")
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise kind(path, "file", _NESTED) from None
    except tomllib.TOMLDecodeError as error:
        raise kind(path, "file", f"expected TOML: {error}") from None
    except ValueError:
        raise kind(path, "file", _LONG) from None
    _check(found, kind, path, "file", finite=False, texts=False)
    return found


_NESTED = f"expected values nested at most {MAX_DEPTH} levels deep"
_LONG = f"expected integers of at most {MAX_INTEGER_BITS} bits"


def _text(content: bytes | str, kind: Kind, path: object, field: str, language: str) -> str:
    if isinstance(content, str):
        return content
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise kind(path, field, f"expected {language} in UTF-8: {error}") from None


def _check(root: Any, kind: Kind, path: object, field: str, finite: bool, texts: bool) -> None:
    """Level by level, without recursion: `level` has all values of one depth."""
    level: list[Any] = [root]
    for _ in range(MAX_DEPTH):
        what = next((w for v in level if (w := _wrong(v, finite, texts)) is not None), None)
        if what is not None:
            raise kind(path, _named(root, field, finite, texts), what)
        level = [child for value in level for child in _children(value)]
        if not level:
            return
    raise kind(path, field, _NESTED)


def _children(value: Any) -> Iterable[Any]:
    if type(value) is dict:
        return [*value, *value.values()]
    return value if type(value) is list else ()


def _wrong(value: Any, finite: bool, texts: bool) -> str | None:
    """What is wrong with this value, its parts aside."""
    if type(value) is int and value.bit_length() > MAX_INTEGER_BITS:
        return f"expected an integer of at most {MAX_INTEGER_BITS} bits"
    if finite and type(value) is float and not isfinite(value):
        return f"expected a finite number, not {value}"
    if texts and type(value) is str and not _is_unicode(value):
        return f"expected characters, {short(value)} has half of a surrogate pair"
    return None


def _named(root: Any, field: str, finite: bool, texts: bool) -> str:
    """The field with the first wrong value, such as rope_scaling.factor; only errors need it."""
    level: list[tuple[str, Any]] = [("" if field == "file" else field, root)]
    while level:
        for name, value in level:
            if _wrong(value, finite, texts) is not None:
                return name or field
        level = [
            (f"{name}.{key}" if name else str(key), part)
            for name, value in level
            for key, part in _parts(value)
        ]
    return field


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    """What a container has, by name; a key is a part as well, of its own name."""
    if type(value) is dict:
        return [*((key, key) for key in value), *value.items()]
    return enumerate(value) if type(value) is list else ()


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def short(value: object, limit: int = 80) -> str:
    """A parsed value as an error shows it: escaped, and not as long as the file it is from."""
    text = repr(value[: limit + 1]) if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."
