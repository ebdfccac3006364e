"""Reads timing sets (TOML): every number with a value and a source, known names or a path."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from moesaic.core.errors import FileError, UnknownName
from moesaic.core.parsing import MAX_TOML_BYTES, parse_toml, read_bounded, short
from moesaic.machines.sim.dram.timing import BadTiming, Geometry, Rules, Timing

_DATA = files("moesaic.machines.sim.dram") / "data"
_NUMBER = 'expected { value = a whole number, source = "where it comes from" }'
_GEOMETRY = {each.name: each.name for each in fields(Geometry)}


def _key(name: str) -> str:
    """The name of a rule, as the standards write it: nccd_l -> nCCD_L."""
    return f"n{name[1:].upper()}" if name.startswith("n") else name


_RULES = {_key(name): name for name in Rules._fields}


class BadTimingFile(FileError):
    kind = "timing set"


def known_timings() -> tuple[str, ...]:
    """The timing sets that come with the package."""
    names = (entry.name for entry in _DATA.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def load_timing(name_or_path: str) -> Timing:
    """A known timing set by name (in any case), or one by the path of its TOML file."""
    name = name_or_path.lower()
    if name in known_timings():
        resource = _DATA / f"{name}.toml"
        return parse_timing(resource.read_bytes(), resource)
    path = Path(name_or_path)
    if path.is_file():
        return parse_timing(read_bounded(path, BadTimingFile, MAX_TOML_BYTES), path)
    if path.suffix == ".toml" or os.sep in name_or_path:
        raise BadTimingFile(path, "file", "expected a TOML file, there is none here")
    raise UnknownName("timing set", name_or_path, known_timings())


def parse_timing(content: bytes, path: object) -> Timing:
    """`content` is a timing set; `path` is only named in errors."""
    return _Reader(path).timing(parse_toml(content, BadTimingFile, path))


class _Reader:
    """Walks one parsed timing set; remembers the source of every number it meets."""

    def __init__(self, path: object) -> None:
        self.path = path
        self.sources: dict[str, str] = {}

    def timing(self, table: Mapping[str, Any]) -> Timing:
        self._only(table, ("name", "title", "clock", "geometry", "nck"), "")
        name, title = self._text(table, "name"), self._text(table, "title")
        clock = self._section(table, "clock", {"rate_mt_s": "rate_mt_s"})
        geometry = Geometry(**self._section(table, "geometry", _GEOMETRY))
        rules = Rules(**self._section(table, "nck", _RULES))
        try:
            return Timing(name, title, clock["rate_mt_s"], geometry, rules, self.sources)
        except BadTiming as error:
            raise BadTimingFile(self.path, _key(error.name), error.expected) from None

    def _section(
        self, table: Mapping[str, Any], section: str, names: Mapping[str, str]
    ) -> dict[str, int]:
        content = table.get(section)
        if not isinstance(content, dict):
            raise BadTimingFile(self.path, section, f"expected a table [{section}]")
        self._only(content, names, f"{section}.")
        return {field: self._number(content, key, section) for key, field in names.items()}

    def _number(self, content: Mapping[str, Any], key: str, section: str) -> int:
        where = f"{section}.{key}"
        entry = content.get(key)
        if not isinstance(entry, dict):
            missing = "is missing, " if entry is None else ""
            raise BadTimingFile(self.path, where, f"{missing}{_NUMBER}")
        self._only(entry, ("value", "source"), f"{where}.")
        value, source = entry.get("value"), entry.get("source")
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadTimingFile(self.path, where, f"expected a whole number, not {short(value)}")
        if not isinstance(source, str) or not source.strip():
            raise BadTimingFile(self.path, f"{where}.source", "expected where it comes from")
        self.sources[key] = source
        return value

    def _text(self, table: Mapping[str, Any], key: str) -> str:
        value = table.get(key)
        if not isinstance(value, str) or not value.strip():
            raise BadTimingFile(self.path, key, "expected a text")
        return value

    def _only(self, table: Mapping[str, Any], allowed: Iterable[str], prefix: str) -> None:
        for key in table:
            if key not in allowed:
                known = ", ".join(allowed)
                raise BadTimingFile(
                    self.path, prefix + key, f"unknown field; expected one of {known}"
                )
