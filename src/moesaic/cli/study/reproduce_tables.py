"""A reproduction's rows as tables that fit a terminal; `--json` has them in full.

A row's id says what it is: `figure/model/length/ratio/system`, `fig9/model/capacity/cache`, and
for the claims with numbers `claim@machine`, with `/speedup` behind it where it is a ratio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moesaic.cli.shared.output import print_table
from moesaic.cli.study.routing_label import titled

if TYPE_CHECKING:
    from moesaic.reproductions.row import Row

FIGURES = {"fig7": "Fig. 7: time to first token, ms", "fig8": "Fig. 8: time between tokens, ms"}


def print_rows(rows: Sequence[Row]) -> None:
    _print_claims([row for row in rows if "@" in row.id])
    _print_hit_rates([row for row in rows if row.id.startswith("fig9/")])
    for figure, title in FIGURES.items():
        _print_figure(title, [row for row in rows if row.id.startswith(f"{figure}/")])


def _print_claims(rows: Sequence[Row]) -> None:
    """One line per claim, one column per machine."""
    machines = list(dict.fromkeys(_machine(row) for row in rows))
    lines: dict[tuple[str, str], list[object]] = {}
    for row in rows:
        line = lines.setdefault((row.claim, row.unit), [row.claim, row.paper])
        line.append(f"{row.ours:.3g} {row.unit}")
    if lines:
        title = "What the paper says in numbers, and what each machine gives"
        print_table(titled(title, rows), ["claim", "paper", *machines], list(lines.values()))


def _machine(row: Row) -> str:
    return row.id.partition("@")[2].partition("/")[0]


def _print_hit_rates(rows: Sequence[Row]) -> None:
    """One line per model and capacity; the paper's value behind ours where it states one."""
    caches = list(dict.fromkeys(row.id.rsplit("/", 1)[1] for row in rows))
    lines: dict[str, list[object]] = {}
    for row in rows:
        _, model, capacity, _ = row.id.split("/")
        line = lines.setdefault(f"{model}/{capacity}", [model, capacity])
        stated = "" if row.paper is None else f" (paper {row.paper:.3f})"
        line.append(f"{row.ours:.3f}{stated}")
    if lines:
        title = titled("Fig. 9: hit rates", rows)
        print_table(title, ["model", "cached", *caches], list(lines.values()))


def _print_figure(title: str, rows: Sequence[Row]) -> None:
    """One line per model, length and cache ratio, one column per system; no numbers to compare."""
    systems = list(dict.fromkeys(row.id.rsplit("/", 1)[1] for row in rows))
    lines: dict[str, list[object]] = {}
    for row in rows:
        _, model, length, ratio, _ = row.id.split("/")
        short = model.partition("-")[0]
        line = lines.setdefault(f"{model}/{length}/{ratio}", [short, length, ratio])
        line.append(f"{1000 * row.ours:.4g}")
    if lines:
        print_table(
            titled(title, rows), ["model", "tokens", "cached", *systems], list(lines.values())
        )
