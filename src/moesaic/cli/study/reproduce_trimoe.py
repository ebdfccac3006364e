"""`moesaic reproduce trimoe`: its rows as tables that fit a terminal, and its figures as files.

A row's id says what it is: `figure/.../system@rule`, the rule being how host reads occupy DIMMs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moesaic.cli.shared.output import print_table
from moesaic.cli.study.reproduction_rows import RULES, Lines, named, pivot, titled
from moesaic.core.errors import ImpossibleSetting

if TYPE_CHECKING:
    from moesaic.reproductions.row import Row

CHECKED = ("model@own-share", "plan@own-share", "model@none", "plan@none")


def print_rows(rows: Sequence[Row]) -> None:
    _print_stated(rows)
    own = [row for row in rows if row.id.startswith("fig6/") and row.id.endswith("@own-share")]
    bars = pivot([row._replace(id=row.id.partition("@")[0]) for row in own], "fig6/", "/")
    systems = ("enhanced-ktransformers", "monde", "trimoe", "tri-balanced")
    bars = {name: bar for name, bar in bars.items() if set(systems) <= bar.keys()}
    _print(titled("Fig. 6: speedup over Klotski, own-share", own), bars, systems)
    for title, start in (
        ("Fig. 6 by routing and by MoNDE's layout: over the best baseline", "readings/"),
        ("Moves by two rules: over no relayout and rebalancing", "migration/"),
    ):
        _print(named(title, rows, start), pivot(rows, start, "@"), RULES)
    title = "Seeds of the routing: over the best baseline"
    _print(named(title, rows, "seeds/"), pivot(rows, "seeds/", "/"), ("mean", "least", "largest"))
    title = "Fig. 9: latency over the paper's machine"
    _print(named(title, rows, "fig9/"), pivot(rows, "fig9/", "@"), RULES)
    ways = ("roomy", "main", "main-cpu", "fits")
    for title, start in (
        ("KV cache: over the best baseline, MoE layer", "memory/"),
        ("KV cache: the same with attention", "memory-layer/"),
    ):
        _print(named(title, rows, start), pivot(rows, start, "/"), ways)
    both = ("trimoe", "tri-balanced")
    for title, start, columns in (
        ("Sensitivity: over the best baseline", "sensitivity/", both),
        ("Layouts: over the bound of any layout", "beyond/", both),
        ("Makespan model and plans over simulator", "check/", CHECKED),
    ):
        _print(named(title, rows, start), pivot(rows, start, "/"), columns)
    spread = pivot(rows, "spread/", "/")
    _print(
        "Makespan model over simulator, all runs", spread, ("least", "median", "largest", "apart")
    )
    real = [row for row in rows if row.id.startswith("real/") and "@" in row.id]
    _print("Real routing: over the best baseline", pivot(real, "real/", "@"), RULES)


def _print_stated(rows: Sequence[Row]) -> None:
    """What the paper has a number for: one line per claim, one column per contention rule."""
    lines: dict[str, list[object]] = {}
    for row in rows:
        if row.paper is None:
            continue
        name, _, rule = row.id.partition("@")
        line = lines.setdefault(name, [name, f"{row.paper:g}", "", "", ""])
        line[2 + (RULES.index(rule) if rule else 0)] = f"{row.ours:.3g} {row.unit}"
    if lines:
        head = ("row", "paper", "ours (own-share)", "full", "none")
        stated = [row for row in rows if row.paper is not None]
        title = titled("What the paper states in numbers", stated)
        print_table(title, head, list(lines.values()))


def _print(title: str, lines: Lines, columns: Sequence[str]) -> None:
    cells = [
        (name, *(f"{line[column]:.2f}" if column in line else "" for column in columns))
        for name, line in lines.items()
    ]
    if cells:
        print_table(title, ("row", *columns), cells)


def drawable(folder: str | None) -> None:
    """Refuse a folder that figures cannot be written to, before any work."""
    if folder is None:
        return
    from moesaic.cli.shared.out_files import check_picture

    if not Path(folder).is_dir():
        raise ImpossibleSetting(f"--plots {folder!r} is not a directory: create it first")
    if not os.access(folder, os.W_OK):
        raise ImpossibleSetting(f"--plots {folder!r} is not writable")
    check_picture("--plots", str(Path(folder) / "figure.png"))


def draw(folder: str, ending: str, rows: Sequence[Row]) -> list[str]:
    """One file for every figure that these rows have; their paths."""
    from moesaic.cli.study.reproduce_trimoe_pictures import FIGURES

    drawn = []
    for name, picture in FIGURES.items():
        path = str(Path(folder) / f"trimoe-{name}.{ending}")
        if picture(path, rows):
            drawn.append(path)
    return drawn
