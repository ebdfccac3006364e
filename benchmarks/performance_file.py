"""A file of results, read with everything checked that the tables rely on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.performance_page import RENDERED
from benchmarks.performance_results import merged
from moesaic.core.errors import ImpossibleSetting

SMALL_FOLDER = "moesaic-performance-small-"  # of tiny models
# Of a row: what each value must be, and whether it must be there.
_ROW: dict[str, tuple[type, bool]] = {
    "section": (str, True), "name": (str, True), "command": (str, True), "figures": (list, False),
    "failed": (str, False), "notes": (list, False),
}  # fmt: skip
_WORDS: dict[type, str] = {str: "text", list: "a list", dict: "an object"}
_UNUSABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError)


def read(path: Path) -> dict[str, Any]:
    """What `run` wrote, or in words which file has what wrong."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ImpossibleSetting(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ImpossibleSetting(f"{path} holds no results: it is not JSON") from None
    if not isinstance(found, dict) or not isinstance(found.get("rows"), list):
        raise ImpossibleSetting(f"{path} holds no results of `run`")
    problem = next(_problems(found), None)
    if problem is not None:
        raise ImpossibleSetting(
            f"{path}: {problem}: measure it again (python -m benchmarks.performance run), or leave "
            "the file out"
        )
    if any(SMALL_FOLDER in row["command"] for row in found["rows"]):
        raise ImpossibleSetting(f"{path} was tried with --small: the page shows real sizes only")
    return found


def _problems(found: dict[str, Any]) -> Iterator[str]:
    """One after the other: each check relies on those before it."""
    machine = found.get("machine") or {}
    if not isinstance(found.get("date"), str):
        yield "it has no 'date'"
    isa = machine.get("isa", []) if isinstance(machine, dict) else None
    if not isinstance(isa, list) or not all(isinstance(each, str) for each in isa):
        yield "its 'machine' is not described as `run` does"
    for number, row in enumerate(found["rows"], 1):
        yield from _row_problems(row, f"row {number}")
    for row in found["rows"]:
        yield from _unusable(found, [row], f"row {row['section']}:{row['name']}")
    for section in RENDERED:
        rows = [row for row in found["rows"] if row["section"] == section]
        yield from _unusable(found, rows, f"the rows of section {section} together")


def _row_problems(row: Any, which: str) -> Iterator[str]:
    if not isinstance(row, dict):
        yield f"{which} is not an object"
        return
    for name, (kind, needed) in _ROW.items():
        if name not in row and needed:
            yield f"{which} has no {name!r}"
        elif name in row and not isinstance(row[name], kind):
            yield f"{name!r} of {which} is not {_WORDS[kind]}"
    if row["section"] not in RENDERED:
        yield f"{which} is of section {row['section']!r}, which is none of {', '.join(RENDERED)}"
    if not all(isinstance(figure, dict) for figure in row.get("figures", [])):
        yield f"a figure of {which} is not an object"


def _unusable(found: dict[str, Any], rows: list[dict[str, Any]], which: str) -> Iterator[str]:
    """The tables themselves tell what they miss."""
    results = merged([{**found, "rows": rows}])
    try:
        for tables in RENDERED.values():
            list(tables(results))
    except KeyError as error:
        yield f"a figure of {which} has no {error}"
    except _UNUSABLE as error:
        yield f"the figures of {which} cannot be used ({error})"
