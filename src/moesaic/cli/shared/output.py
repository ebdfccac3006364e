"""How results reach the user: one JSON object, or rich tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from moesaic.cli.shared.progress_lines import ProgressLines

_ANY_WIDTH = 1000


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on standard output; columns of numbers (and gaps) are right-aligned. Brackets
    are text, not rich's markup."""
    from rich.console import Console
    from rich.markup import escape
    from rich.measure import Measurement
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        cells = [row[index] for row in rows if row[index] is not None]
        numeric = bool(cells) and all(_is_number(value) for value in cells)
        one_word = all(" " not in cell(value) for value in cells)  # names stay whole
        table.add_column(escape(column), justify="right" if numeric else "left", no_wrap=one_word)
    for row in rows:
        table.add_row(*(escape(cell(value)) for value in row))
    console = Console()
    any_width = console.options.update(max_width=_ANY_WIDTH)
    least = Measurement.get(console, any_width, table).minimum
    console.width = max(console.width, least)  # rather too wide than with names cut off
    console.print(table)


def _is_number(value: object) -> bool:
    """A number, or one already formatted."""
    if isinstance(value, str):
        return value.rstrip("%").replace(".", "", 1).isdecimal()
    return isinstance(value, (int, float))


def cell(value: object) -> str:
    """A value as a person reads it: four significant digits, nothing for nothing."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


@contextmanager
def progress(description: str, total: int | None, quiet: bool = False) -> Iterator[Any]:
    """A progress bar on standard error, or lines where that is no terminal; yields
    `advance(count=1)`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, quiet=quiet)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    if not console.is_terminal:  # a bar that cannot be wiped leaves an empty line
        yield (lambda count=1: None) if quiet else ProgressLines(description, total).advance
        return
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count=1: bar.update(task, advance=count)
