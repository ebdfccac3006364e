"""Rows of `moesaic reproduce trimoe --json` as a small file that the page is made from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.files import whole_file

DIGITS = 4  # significant ones that are kept
MISSING = "–"


@dataclass(frozen=True, slots=True)
class Results:
    """Values by row id; `paper` has what the paper states. `read` collects the ids that a page has
    asked for."""

    values: Mapping[str, float]
    paper: Mapping[str, float]
    about: Mapping[str, str] = field(default_factory=dict)  # command, commit, date
    read: set[str] = field(default_factory=set)

    def value(self, name: str) -> float | None:
        self.read.add(name)
        return self.values.get(name)

    def text(self, name: str, form: str = ".2f") -> str:
        found = self.value(name)
        return MISSING if found is None else format(found, form)

    def texts(self, names: Iterable[str], form: str = ".2f", between: str = " / ") -> str:
        return between.join(self.text(name, form) for name in names)

    def stated(self, name: str) -> str:
        self.read.add(name)
        return f"{self.paper[name]:g}" if name in self.paper else ""


def of_rows(rows: Iterable[Mapping[str, Any]], about: Mapping[str, str]) -> Results:
    """From what the command prints."""
    found = list(rows)
    values = {row["id"]: float(f"{row['ours']:.{DIGITS}g}") for row in found}
    paper = {row["id"]: row["paper"] for row in found if row["paper"] is not None}
    return Results(values, paper, about)


def load(path: Path) -> Results:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Results(found["values"], found["paper"], found["about"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ImpossibleSetting(
            f"{path} is not a result of this page: expected the file that `keep` writes ({error})"
        ) from error


def keep(results: Results, path: Path) -> None:
    """Only the rows that have been read."""
    values = {name: results.values[name] for name in sorted(results.read & set(results.values))}
    paper = {name: results.paper[name] for name in sorted(results.read & set(results.paper))}
    kept = {"about": dict(results.about), "paper": paper, "values": values}
    with whole_file(path, "w") as file:
        file.write(json.dumps(kept, indent=1) + "\n")
