"""`--set NAME=VALUE` and `--sweep NAME=VALUE,VALUE,...`: the same machine with other numbers.

Names are those of the machine description and those of `hardware/buyers_names.py`; a sweep may also
be over what a run is asked for (`batch=32,64`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from moesaic.core.errors import ImpossibleSetting

if TYPE_CHECKING:
    from moesaic.hardware.machine_spec import MachineSpec

HELP = "help"
MAX_RUNS = 1000
SETTING, SWEEPING = "--set", "--sweep"
_FORMS = {SETTING: "NAME=VALUE, as in ndp.count=8", SWEEPING: "NAME=A,B,..., as in ndp.count=0,4,8"}
# What a run is asked for, by the option it has -> how its values are read.
RUN_NAMES: dict[str, type[Any]] = {
    "batch": int, "context": int, "tokens": int, "cache_ratio": float, "expert_dtype": str,
    "profile_tokens": int,
}  # fmt: skip
Point = tuple[tuple[str, Any], ...]  # (name, value) of each sweep

set_option = click.option(
    SETTING, "changes", multiple=True, metavar="NAME=VALUE",
    help="The machine with another number, as in ndp.count=8; `--set help` lists what there is. "
    "May be repeated.",
)  # fmt: skip
sweep_option = click.option(
    SWEEPING, "sweeps", multiple=True, metavar="NAME=A,B,...",
    help="Every run with each of these numbers of the machine, or of "
    f"{', '.join(RUN_NAMES)}; `--sweep help` lists what there is. Repeated: all combinations.",
)  # fmt: skip


class Sweep(NamedTuple):
    name: str
    values: tuple[Any, ...]


def asks_for_help(words: Sequence[str]) -> bool:
    return any(word.strip() == HELP for word in words)


def read_changes(words: Sequence[str]) -> dict[str, Any]:
    """What `--set` was given, by name."""
    found: dict[str, Any] = {}
    for word in words:
        name, value = _halves(SETTING, word)
        if name in RUN_NAMES:
            option = name.replace("_", "-")
            raise ImpossibleSetting(f"--set {word}: it is no number of the machine: use --{option}")
        if name in found:
            raise ImpossibleSetting(f"--set names {name} twice: give one value")
        found[name] = plain_value(value)
    return found


def read_sweeps(words: Sequence[str], fixed: Iterable[str] = ()) -> list[Sweep]:
    """What `--sweep` was given; names in `fixed` have one value already."""
    found: dict[str, Sweep] = {}
    for word in words:
        name, listed = _halves(SWEEPING, word)
        if name in found:
            raise ImpossibleSetting(f"--sweep names {name} twice: give all its values in one list")
        if name in fixed:
            raise ImpossibleSetting(f"{name} is swept and given another way too: leave one out")
        values = [_read(name, value.strip()) for value in listed.split(",") if value.strip()]
        if not values:
            raise ImpossibleSetting(f"--sweep {word}: no values; expected {_FORMS[SWEEPING]}")
        twice = next((v for at, v in enumerate(values) if v in values[:at]), None)
        if twice is not None:
            raise ImpossibleSetting(f"--sweep {word}: {twice} is there twice; give each value once")
        found[name] = Sweep(name, tuple(values))
    return list(found.values())


def points(sweeps: Sequence[Sweep], others: int = 1) -> list[Point]:
    """Every combination of values; `others` are the runs at each."""
    runs = others * prod(len(sweep.values) for sweep in sweeps)
    if sweeps and runs > MAX_RUNS:
        lengths = " x ".join(str(len(sweep.values)) for sweep in sweeps)
        raise ImpossibleSetting(
            f"--sweep asks for {runs} runs ({lengths} points, {others} runs each); at most "
            f"{MAX_RUNS} can be compared at once: give fewer values, sweeps or systems"
        )
    names = [sweep.name for sweep in sweeps]
    return [
        tuple(zip(names, values, strict=True))
        for values in product(*(sweep.values for sweep in sweeps))
    ]


def check_names(option: str, spec: MachineSpec, asked: Iterable[tuple[str, Any]]) -> None:
    """Refuse names that the machine has not got, and values that are none of theirs."""
    from moesaic.hardware.what_if import check_change, described_names

    known = described_names(spec)
    for name, value in asked:
        if name in RUN_NAMES:
            continue
        if name not in known:
            raise ImpossibleSetting(_unknown(option, spec, name))
        check_change(spec, name, value)


def _unknown(option: str, spec: MachineSpec, name: str) -> str:
    from moesaic.hardware.machine_reader import known_machines, load_machine
    from moesaic.hardware.what_if import changeable, described_names

    known = described_names(spec)
    all_names = [*known, *(RUN_NAMES if option == SWEEPING else ())]
    near = get_close_matches(name.lower(), all_names, n=1, cutoff=0.5)
    others = [each for each in known_machines() if name in changeable(load_machine(each))]
    hint = f" Did you mean {near[0]!r}?" if near else ""
    if others:
        hint = f" Machines that have it: {', '.join(others)}."
    present = ", ".join(
        f"{each} ({_shown(found.present)}{f' {found.unit}' if found.unit else ''})"
        for each, found in known.items()
        if found.note or not each.endswith(("_us", "_efficiency"))
    )
    return (
        f"{option} {name}: {spec.name} has no such number.{hint} It has {present}; all of them: "
        f"moesaic compare --machine {spec.name} --sweep help"
    )


def print_names(spec: MachineSpec, sweeping: bool) -> None:
    """What `--set help` and `--sweep help` say."""
    from moesaic.cli.shared.output import print_table
    from moesaic.hardware.what_if import described_names

    rows: list[tuple[object, ...]] = [
        (name, _shown(found.present), found.unit, found.note)
        for name, found in described_names(spec).items()
    ]
    if sweeping:
        rows += [(name, None, "", "of the run, not the machine") for name in RUN_NAMES]
    print_table(f"What can be changed of {spec.name}", ("name", "now", "unit", "note"), rows)


def changes_text(changes: Mapping[str, Any] | Point) -> str:
    pairs = changes.items() if isinstance(changes, Mapping) else changes
    return ", ".join(f"{name}={_shown(value)}" for name, value in pairs)


def plain_value(text: str) -> Any:
    """A number where it is one."""
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() and abs(number) < 1e15 else number


def _read(name: str, text: str) -> Any:
    """A value of the run has its own type; one of the machine is checked with the machine."""
    kind = RUN_NAMES.get(name)
    if kind is None:
        return plain_value(text)
    try:
        return kind(text)
    except ValueError:
        expected = "a whole number" if kind is int else "a number"
        raise ImpossibleSetting(f"--sweep {name}: {text!r} is not {expected}") from None


def _halves(option: str, word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not name.strip() or not value.strip(" ,"):
        raise ImpossibleSetting(f"{option} {word!r}: expected {_FORMS[option]}, or {option} help")
    return name.strip(), value.strip()


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
