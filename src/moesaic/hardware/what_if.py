"""The same machine with another number: `ndp.count`, `cpu.tflops`, `dimms.contention` and so on.

Keys are those that `moesaic machines NAME` prints; `gpu.tflops` and `cpu.tflops` stand for all
matmul rates of a processor, which keep their proportions; `buyers_names.py` has what stands for
more than that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from typing import Any, NamedTuple

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.hardware.buyers_names import BuyersName, buyers_names
from moesaic.hardware.dimms import CONTENTION, LINK_TOPOLOGIES, SHARING
from moesaic.hardware.machine_spec import SECTIONS, TABLES, MachineSpec, numbers_of
from moesaic.hardware.numbers import Number, Rule, numbers, texts
from moesaic.hardware.quantities import Quantity, quantity, unit_of

SOURCE = "changed for a what-if study"
_RATES, _TFLOPS, _COMMON = "matmul_tflops", "tflops", "bf16"
_SETTINGS = ("dimms", "dimm_link")  # sections whose texts are rules, not names
_CHOICES = {
    "dimms.contention": CONTENTION,
    "dimms.sharing": SHARING,
    "dimm_link.topology": LINK_TOPOLOGIES,
}


class Changeable(NamedTuple):
    """`note`: what else changes with it, or which values there are."""

    present: Any
    unit: str
    note: str = ""


def described_names(spec: MachineSpec) -> dict[str, Changeable]:
    """Everything that can be changed, those that a buyer says first."""
    found = {
        name: Changeable(each.present(spec), each.unit, each.follows)
        for name, each in buyers_names(spec).items()
    }
    for part in ("gpu", "cpu"):
        rate = getattr(spec, part).matmul_tflops[_COMMON]
        note = "bf16; other precisions in proportion"
        found[f"{part}.{_TFLOPS}"] = Changeable(rate, "TFLOP/s", note)
    for name in _rules(spec):
        section, field = name.split(".")
        present = getattr(getattr(spec, section), field)
        found[name] = Changeable(present, "", " | ".join(_CHOICES[name]))
    for key, value in spec.values().items():
        found.setdefault(key, Changeable(value, unit_of(key)))
    return found


def changeable(spec: MachineSpec) -> tuple[str, ...]:
    """Every name that `changed` knows of this machine."""
    return tuple(described_names(spec))


def _rules(spec: MachineSpec) -> list[str]:
    return [
        f"{section}.{text.name}"
        for section in _SETTINGS
        if getattr(spec, section) is not None
        for text in texts(SECTIONS[section])
    ]


def check_change(spec: MachineSpec, name: str, value: Any) -> None:
    """Refuse a value that is none of this name, whatever the others are."""
    if name not in described_names(spec):
        raise UnknownName(f"number of {spec.name}", name, changeable(spec))
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            known = ", ".join(_CHOICES[name])
            raise ImpossibleSetting(f"{name} is {value!r}: expected one of {known}")
        return
    number = _number(name, value)
    rule = _rule(spec, name)
    if not rule.holds(number):
        raise ImpossibleSetting(f"{name} is {value}: expected {rule.expected}")


def _rule(spec: MachineSpec, name: str) -> Rule:
    """The rule of a number of the description, or by the unit in a buyer's name."""
    where, field, _ = _split(name)
    table, _, part = where.partition(".")
    kind = TABLES[table] if part else SECTIONS.get(table)
    known = {} if kind is None else {number.name: number.rule for number in numbers(kind)}
    if field in known:
        return known[field]
    by_ending = quantity(f"_{field}")
    if name in buyers_names(spec) and not by_ending.unit:
        by_ending = Quantity(buyers_names(spec)[name].unit, 1e-2, 1e6)
    return Rule(f"a number above 0 ({by_ending})", by_ending.holds)


def changed(spec: MachineSpec, changes: Mapping[str, Any]) -> MachineSpec:
    """All of them at once, so that numbers that depend on each other may change together. A
    number that is named itself has its own value, whatever would follow from others."""
    for name, value in changes.items():
        check_change(spec, name, value)
    parts: dict[str, dict[str, Any]] = {}
    for key, value in _expanded(spec, changes).items():
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


def _expanded(spec: MachineSpec, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Buyers' names as numbers of the description, in the order in which they apply."""
    known: Mapping[str, BuyersName] = buyers_names(spec)
    found: dict[str, Any] = {}
    for name, each in known.items():
        if name in changes:
            found |= each.changes(spec, _number(name, changes[name]))
    plain = {name: value for name, value in changes.items() if name not in known}
    for name in plain:
        found.pop(name, None)  # and behind what follows from others
    return found | plain


def _rebuilt(spec: MachineSpec, parts: Mapping[str, dict[str, Any]]) -> MachineSpec:
    """The machine rebuilt in one step: a machine of many DIMMs takes seconds to put together."""
    found: dict[str, Any] = {}
    sources = dict(spec.sources)
    for where, fields in parts.items():
        before = _part(spec, where)
        part = replace(before, **fields)
        table, _, name = where.partition(".")
        found[table] = {**found.get(table, getattr(spec, table)), name: part} if name else part
        old, new = (numbers_of(each, where) for each in (before, part))
        sources |= {key: SOURCE for key, value in new.items() if value != old.get(key)}
    return replace(spec, **found, sources=sources if spec.sources else spec.sources)


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
    """The value of a number, or the name of a rule."""
    if number is None:
        return str(value)
    found = _number(key, value)
    if not number.rule.holds(found):
        raise ImpossibleSetting(f"{key} is {value}: expected {number.rule.expected}")
    return int(found) if number.rule.expected.startswith("a whole") else found


def _number(key: str, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ImpossibleSetting(f"{key} is {value!r}: expected a number") from None
    if not isfinite(found):
        raise ImpossibleSetting(f"{key} is {value}: expected a finite number")
    return found
