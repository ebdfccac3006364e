"""The same machine with another number: `ndp.count`, `cpu.tflops`, `dimms.contention` and so on.

Keys are those that `moesaic machines NAME` prints; `gpu.tflops` and `cpu.tflops` stand for all
matmul rates of a processor, which keep their proportions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.hardware.machine_spec import SECTIONS, TABLES, MachineSpec
from moesaic.hardware.numbers import Number, numbers, texts

SOURCE = "changed for a what-if study"
_RATES, _TFLOPS, _COMMON = "matmul_tflops", "tflops", "bf16"
_SETTINGS = ("dimms", "dimm_link")  # sections whose texts are rules, not names


def changeable(spec: MachineSpec) -> tuple[str, ...]:
    """Every key that `changed` knows of this machine."""
    rules = [
        f"{section}.{text.name}"
        for section in _SETTINGS
        if getattr(spec, section) is not None
        for text in texts(SECTIONS[section])
    ]
    return (*spec.values(), *(f"{p}.{_TFLOPS}" for p in ("gpu", "cpu")), *rules)


def changed(spec: MachineSpec, changes: Mapping[str, Any]) -> MachineSpec:
    """All of them at once, so that numbers that depend on each other may change together."""
    parts: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        if key not in changeable(spec):
            raise UnknownName(f"number of {spec.name}", key, changeable(spec))
        where, field, entry = _split(key)
        part = _part(spec, where)
        fields = parts.setdefault(where, {})
        if field == _TFLOPS and entry is None:
            rates, bf16 = part.matmul_tflops, _number(key, value)
            fields[_RATES] = {k: rate * bf16 / rates[_COMMON] for k, rate in rates.items()}
        elif entry is not None:
            fields[field] = {**fields.get(field, getattr(part, field)), entry: _number(key, value)}
        else:
            known = {number.name: number for number in numbers(type(part))}
            fields[field] = _value(key, value, known.get(field))
    return _rebuilt(spec, parts)


def _rebuilt(spec: MachineSpec, parts: Mapping[str, dict[str, Any]]) -> MachineSpec:
    found: dict[str, Any] = {}
    for where, fields in parts.items():
        part = replace(_part(spec, where), **fields)
        table, _, name = where.partition(".")
        found[table] = {**found.get(table, getattr(spec, table)), name: part} if name else part
    new = replace(spec, **found)
    before, after = spec.values(), new.values()
    sources = {k: spec.sources[k] if before[k] == v else SOURCE for k, v in after.items()}
    return replace(new, sources=sources) if spec.sources else new


def _split(key: str) -> tuple[str, str, str | None]:
    """(part, field, entry of a table or None)."""
    names = key.split(".")
    depth = 2 if names[0] in TABLES else 1
    where, (field, *entry) = ".".join(names[:depth]), names[depth:]
    return where, field, entry[0] if entry else None


def _part(spec: MachineSpec, where: str) -> Any:
    table, _, name = where.partition(".")
    return getattr(spec, table)[name] if name else getattr(spec, table)


def _value(key: str, value: Any, number: Number | None) -> Any:
    """Of a number, or the name of a rule."""
    if number is None:
        return str(value)
    found = _number(key, value)
    if not number.rule.holds(found):
        raise ImpossibleSetting(f"{key} is {value}: expected {number.rule.expected}")
    return int(found) if number.rule.expected.startswith("a whole") else found


def _number(key: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ImpossibleSetting(f"{key} is {value!r}: expected a number") from None
