"""Writes a `MachineSpec` as TOML for `machine_reader.py`, laid out like the packaged ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

from moesaic.core.files import whole_file
from moesaic.hardware.machine_reader import parse_machine
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.numbers import numbers, texts


def machine_toml(spec: MachineSpec) -> str:
    """The description of a machine; reading it gives an equal one.

    A specification that could not be read back (an infinite rate, an empty title) is refused
    here, so that no such file is ever written."""
    stated, needed = set(spec.sources), set(spec.values())
    assert stated == needed, f"a source for each number and nothing else: {stated ^ needed}"
    text = "\n".join(_lines(spec)) + "\n"
    again = parse_machine(text.encode(), spec.name)
    assert again == spec, f"{spec.name} reads back as another machine"
    return text


def save_machine(spec: MachineSpec, path: Path) -> None:
    """Write the description, whole or not at all; folders on the way are made."""
    content = machine_toml(spec).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as stream:
        stream.write(content)


def _lines(spec: MachineSpec) -> Iterator[str]:
    for key in ("name", "title", "description"):
        yield f"{key} = {_text(getattr(spec, key))}"
    if spec.system:
        yield f"system = {_text(spec.system)}"
    yield "notes = ["
    yield from (f"    {_text(note)}," for note in spec.notes)
    yield "]"
    for where, part in spec.parts():
        yield from _part(part, where, spec.sources)


def _part(part: Any, where: str, sources: Mapping[str, str]) -> Iterator[str]:
    """Names and single numbers first: in TOML, what follows a table belongs to it."""
    all_numbers = list(numbers(type(part)))
    yield from ("", f"[{where}]")
    for text in texts(type(part)):
        names = getattr(part, text.name)
        if names or text.required:
            yield f"{text.name} = {_names(names)}"
    for name in (number.name for number in all_numbers if not number.table):
        yield f"{name} = {_measure(getattr(part, name), sources[f'{where}.{name}'])}"
    for table in (f"{where}.{number.name}" for number in all_numbers if number.table):
        rates = getattr(part, table.removeprefix(f"{where}."))
        if not rates:  # an optional table that says nothing
            continue
        yield from ("", f"[{table}]")
        for key, rate in rates.items():
            yield f"{key} = {_measure(rate, sources[f'{table}.{key}'])}"


def _names(names: str | tuple[str, ...]) -> str:
    if isinstance(names, str):
        return _text(names)
    return _text(names[0]) if len(names) == 1 else f"[{', '.join(map(_text, names))}]"


def _measure(value: Any, source: str) -> str:
    plain = int(value) if isinstance(value, Integral) else float(value)  # numpy's numbers too
    return f"{{ value = {plain!r}, source = {_text(source)} }}"


def _text(text: str) -> str:
    """JSON's escapes are TOML's, but for DEL, which only TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
