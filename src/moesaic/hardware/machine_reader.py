"""Reads machine descriptions (TOML) into `MachineSpec`; every number needs a value and a source.

Knows the file format and nothing of what the numbers are used for.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from moesaic.core.dtypes import BITS_PER_WEIGHT
from moesaic.core.errors import BadMachine, UnknownName
from moesaic.core.parsing import MAX_TOML_BYTES, parse_toml, read_bounded, short
from moesaic.hardware.machine_spec import (
    OPTIONAL,
    REQUIRED_DTYPES,
    SECTIONS,
    TABLES,
    BadReference,
    MachineSpec,
)
from moesaic.hardware.numbers import Number, Rule, Text, numbers, texts
from moesaic.hardware.processors import FIXED_COSTS

# A GPU's numbers are needed in any case: attention is simulated with them.
_WITHOUT = {
    "gpu": ". For a computer without a GPU, run `moesaic profile` there, which writes the CPU's "
    "numbers in this table; or keep a GPU in the description and plan with --accelerator none"
}
THIS = "this"  # the name of the machine we run on, once it is measured
EMULATED = "this-emulated"  # the same with an emulated accelerator
CUDA = "this-cuda"  # the same with its GPU
ATTENTION = "(attention)"  # ends the name of a "GPU" that is the CPU itself: there is no other
_MEASURED = {
    THIS: "machine.toml",
    EMULATED: "machine-emulated.toml",
    CUDA: "machine-cuda.toml",
}
_MOST_TOKENS = 1_000_000
_DATA = files("moesaic.hardware") / "data"
_TEXTS = ("name", "title", "description")
_SYSTEM = "system"  # a text that may be left out
_MEASURE = 'expected { value = ..., source = "where it comes from" }'


def known_machines() -> tuple[str, ...]:
    """The machines that come with the package."""
    names = (entry.name for entry in _DATA.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def machine_file(name: str = THIS) -> Path:
    """The file in which `moesaic profile` describes the machine it runs on."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(folder, "moesaic", _MEASURED[name])


def measured_machines() -> tuple[str, ...]:
    """What `moesaic profile` has described of the machine we run on."""
    return tuple(name for name in _MEASURED if machine_file(name).is_file())


def load_machine(name_or_path: str) -> MachineSpec:
    """A known machine by name (in any case), the one we run on by the name "this" (or
    "this-emulated", "this-cuda"), or a description by the path of its TOML file."""
    name = name_or_path.lower()
    if name in _MEASURED:
        return _this_machine(name)
    if name in known_machines():
        resource = _DATA / f"{name}.toml"
        return parse_machine(resource.read_bytes(), resource)
    path = Path(name_or_path)
    if not path.is_file():
        if path.suffix == ".toml" or os.sep in name_or_path:
            raise BadMachine(path, "file", "expected a TOML file, there is none here")
        raise UnknownName("machine", name_or_path, (*known_machines(), *_MEASURED))
    return _read_machine(path)


def _this_machine(name: str) -> MachineSpec:
    path = machine_file(name)
    if not path.is_file():
        known = ", ".join(known_machines())
        raise BadMachine(
            path,
            "file",
            "this machine is not measured yet: run `moesaic profile` first, "
            f"or name one of {known}",
        )
    return _read_machine(path)


def _read_machine(path: Path) -> MachineSpec:
    return parse_machine(read_bounded(path, BadMachine, MAX_TOML_BYTES), path)


def parse_machine(content: bytes, path: object) -> MachineSpec:
    """`content` is a description; `path` is only named in errors."""
    return _Reader(path).machine(parse_toml(content, BadMachine, path))


class _Reader:
    """Walks one parsed description; collects the source of every number."""

    def __init__(self, path: object) -> None:
        self.path = path
        self.sources: dict[str, str] = {}

    def machine(self, table: Mapping[str, Any]) -> MachineSpec:
        self._only(table, (*_TEXTS, _SYSTEM, "notes", *SECTIONS, *TABLES), "")
        stated = (*_TEXTS, _SYSTEM) if _SYSTEM in table else _TEXTS
        parts: dict[str, Any] = {key: self._text(table, key, "") for key in stated}
        notes = table.get("notes")
        if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
            raise BadMachine(self.path, "notes", "expected a list of texts (it may be empty)")
        given = [key for key in SECTIONS if key in table or key not in OPTIONAL]
        parts |= {key: self._part(table.get(key), key, SECTIONS[key]) for key in given}
        parts |= {key: self._parts(table[key], key) for key in TABLES if key in table}
        try:
            return MachineSpec(notes=tuple(notes), **parts, sources=self.sources)
        except BadReference as error:
            raise BadMachine(self.path, error.field, error.expected) from None

    def _parts(self, content: Any, table: str) -> dict[str, Any]:
        """A table of parts by name."""
        if not isinstance(content, dict):
            raise BadMachine(self.path, table, f"expected tables [{table}.NAME]")
        kind = TABLES[table]
        return {name: self._part(part, f"{table}.{name}", kind) for name, part in content.items()}

    def _part(self, content: Any, where: str, kind: type[Any]) -> Any:
        if not isinstance(content, dict):
            raise BadMachine(
                self.path, where, f"expected a table [{where}]" + _WITHOUT.get(where, "")
            )
        expected, named = list(numbers(kind)), list(texts(kind))
        self._only(content, [*(t.name for t in named), *(n.name for n in expected)], f"{where}.")
        values = {n.name: self._number(content, n, where) for n in expected}
        for text in named:
            if text.required or text.name in content:
                values[text.name] = self._names(content, text, f"{where}.")
        return kind(**values)

    def _number(self, content: Mapping[str, Any], number: Number, where: str) -> Any:
        field = f"{where}.{number.name}"
        if number.name not in content and number.name in OPTIONAL:
            if number.table:
                return {}
            self.sources[field] = "not stated"
            return number.default
        if number.name not in content:
            shape = " per weight precision" if number.dtypes else ""
            raise BadMachine(self.path, field, f"is missing, {_MEASURE}{shape}")
        if not number.table:
            return self._measure(content[number.name], number.rule, field)
        rates = content[number.name]
        if not isinstance(rates, dict):
            keys = ", ".join(REQUIRED_DTYPES) if number.dtypes else "the machine's parts"
            raise BadMachine(self.path, field, f"expected a table of {keys}")
        if number.dtypes:
            self._precisions(rates, number, where)
        if number.tokens:
            self._token_counts(rates, field)
        if number.name == "once_us":
            self._only(rates, FIXED_COSTS, f"{field}.")
        return {k: self._measure(rate, number.rule, f"{field}.{k}") for k, rate in rates.items()}

    def _precisions(self, rates: Mapping[str, Any], number: Number, where: str) -> None:
        """GPU and CPU state the common ones; another device those it can multiply."""
        field = f"{where}.{number.name}"
        self._only(rates, BITS_PER_WEIGHT, f"{field}.")
        if number.name in OPTIONAL:
            return
        if where not in SECTIONS and not rates:
            raise BadMachine(self.path, field, "expected a rate for one weight precision or more")
        for dtype in REQUIRED_DTYPES if where in SECTIONS else ():
            if dtype not in rates:
                raise BadMachine(self.path, f"{field}.{dtype}", f"is missing, {_MEASURE}")

    def _token_counts(self, rates: Mapping[str, Any], field: str) -> None:
        for key in rates:
            dtype, _, tokens = key.partition("-")
            count = int(tokens) if tokens.isascii() and tokens.isdecimal() else 0
            if dtype not in BITS_PER_WEIGHT or not 1 <= count <= _MOST_TOKENS or tokens[0] == "0":
                expected = "expected a weight precision and a number of tokens, as in bf16-16"
                raise BadMachine(self.path, f"{field}.{short(key)}", expected)

    def _names(self, content: Mapping[str, Any], text: Text, prefix: str) -> str | tuple[str, ...]:
        """One name, or several: then one alone needs no list."""
        value = content.get(text.name)
        if not text.many or isinstance(value, str):
            one = self._text(content, text.name, prefix)
            return (one,) if text.many else one
        if not isinstance(value, list) or not all(isinstance(n, str) and n for n in value):
            raise BadMachine(self.path, prefix + text.name, "expected a list of names")
        return tuple(value)

    def _measure(self, entry: Any, rule: Rule, field: str) -> float:
        if not isinstance(entry, dict) or "value" not in entry:
            raise BadMachine(self.path, field, _MEASURE)
        self._only(entry, ("value", "source"), f"{field}.")
        value, source = entry["value"], entry.get("source")
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or value in (math.inf, -math.inf) or not rule.holds(value):
            raise BadMachine(self.path, field, f"expected {rule.expected}, not {short(value)}")
        if not isinstance(source, str) or not source.strip():
            raise BadMachine(self.path, f"{field}.source", "expected where the number comes from")
        self.sources[field] = source
        whole = rule.expected.startswith("a whole")
        return int(value) if whole else float(value)

    def _text(self, table: Mapping[str, Any], key: str, prefix: str) -> str:
        value = table.get(key)
        if not isinstance(value, str) or not value.strip():
            raise BadMachine(self.path, prefix + key, "expected a text")
        return value

    def _only(self, table: Mapping[str, Any], allowed: Iterable[str], prefix: str) -> None:
        for key in table:
            if key not in allowed:
                known = ", ".join(allowed)
                raise BadMachine(self.path, prefix + key, f"unknown field; expected one of {known}")
