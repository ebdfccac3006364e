"""Results of several runs as one: what the tables are made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.performance_figures import Figure


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One row of a run, with that run's machine."""

    section: str
    name: str
    command: str
    figures: list[Figure]
    failed: str | None
    notes: list[str]
    run: int  # which one, from 1
    machine: dict[str, Any]

    def of(self, **wanted: object) -> Figure | None:
        """The first figure with these values."""
        return next(self.all_of(**wanted), None)

    def all_of(self, **wanted: object) -> Iterator[Figure]:
        for figure in self.figures:
            if all(figure.get(name) == value for name, value in wanted.items()):
                yield figure


@dataclass(frozen=True, slots=True)
class Results:
    runs: list[dict[str, Any]]
    rows: dict[tuple[str, str], ResultRow]

    def section(self, name: str) -> list[ResultRow]:
        return [row for (section, _), row in self.rows.items() if section == name]

    def row(self, section: str, name: str) -> ResultRow | None:
        """None where it has no figures."""
        found = self.rows.get((section, name))
        return found if found is not None and found.figures else None


def merged(runs: Sequence[dict[str, Any]]) -> Results:
    """A later run's row replaces an earlier one's, but not figures by a failure."""
    runs = sorted(runs, key=lambda run: str(run["date"]))
    rows: dict[tuple[str, str], ResultRow] = {}
    for number, run in enumerate(runs, 1):
        for row in run["rows"]:
            key = (row["section"], row["name"])
            found = ResultRow(
                *key, row["command"], row.get("figures", []), row.get("failed"),
                row.get("notes", []), number, run.get("machine") or {},
            )  # fmt: skip
            if found.figures or key not in rows or not rows[key].figures:
                rows[key] = found
    return Results(list(runs), rows)


def rate(figure: Figure | None) -> float | None:
    return None if figure is None else figure["tokens_per_s"]


def ratio(ours: Figure | None, theirs: Figure | None) -> float | None:
    if ours is None or theirs is None:
        return None
    found: float = ours["tokens_per_s"] / theirs["tokens_per_s"]
    return found


def number(value: float | None) -> str:
    """For a cell: three digits or more."""
    if value is None:
        return "–"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
