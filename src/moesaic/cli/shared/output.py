"""How results reach the user: one JSON object, or rich tables.

Progress is a bar, and where standard error is a file or a pipe a line now and then, so that
the log of a long command shows that it is alive and how far it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

import click

UNKNOWN = "unknown"  # instead of a number that cannot be computed
_WIDEST_PIPE = 160  # columns
FIRST_S = 10.0  # commands that take less say nothing
SHARE = 0.1  # of the time so far passes between lines: an hour leaves some fifty


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on standard output that fits the terminal or the variable COLUMNS. Where whole
    words do not fit side by side, each row is a block of lines instead. A pipe has no width:
    there a table has 80 columns, or as many more as its words need. Columns of numbers (and gaps)
    are right-aligned. Brackets are text, not rich's markup."""
    from rich.console import Console
    from rich.text import Text

    from moesaic.cli.shared.table_layout import column_widths, least_width, row_blocks, wrapped

    console = Console()
    texts = [[cell(value) for value in row] for row in rows]
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = max(console.width, min(least_width(columns, texts), _WIDEST_PIPE))
    widths = column_widths(columns, texts, console.width)
    for paragraph in title.split("\n"):
        for line in wrapped(paragraph, console.width, indent=""):
            console.print(Text(line, "bold"), soft_wrap=True)
    if widths is None:
        for line in ("", *row_blocks(columns, texts, console.width), ""):
            console.print(Text(line), soft_wrap=True)
    else:
        console.print(_rich_table(columns, rows, texts, widths), soft_wrap=True)


def _rich_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    texts: Sequence[Sequence[str]],
    widths: Sequence[int],
) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for place, (column, width) in enumerate(zip(columns, widths, strict=True)):
        values = [row[place] for row in rows if row[place] is not None]
        numeric = bool(values) and all(_is_number(value) for value in values)
        table.add_column(Text(column), justify="right" if numeric else "left", width=width)
    for row in texts:
        table.add_row(*map(Text, row))
    return table


def _is_number(value: object) -> bool:
    """A number, or one already formatted, or the lack of one."""
    if isinstance(value, str):
        return value == UNKNOWN or value.rstrip("%").replace(".", "", 1).isdecimal()
    return isinstance(value, (int, float))


def cell(value: object) -> str:
    """A value as a person reads it: four significant digits, nothing for nothing."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


@contextmanager
def progress(
    description: str,
    total: int | None,
    quiet: bool = False,
    unit: str | None = None,
    done: int = 0,
) -> Iterator[Any]:
    """A progress bar on standard error, or lines where that is no terminal; yields
    `advance(count=1)`. With a `unit`, also the rate and the time left; `done`: before it began."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, quiet=quiet)
    lines = ProgressLines(description, total, unit, done)
    if not console.is_terminal:  # a bar that cannot be wiped leaves an empty line
        yield (lambda count=1: None) if quiet else lines.advance
        return
    rate = () if unit is None else (TextColumn("{task.fields[rate]}"),)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        *rate,
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=total, completed=done, rate="")

        def advance(count: int = 1) -> None:
            lines.count(count)
            bar.update(task, advance=count, rate=lines.rate(monotonic()))

        yield advance


class ProgressLines:
    def __init__(
        self, description: str, total: int | None, unit: str | None = None, done: int = 0
    ) -> None:
        self._description, self._total, self._unit = description, total, unit
        self._done = self._before = done
        self._start = monotonic()
        self._due = self._start + FIRST_S

    def count(self, count: int) -> None:
        self._done += count

    def rate(self, now: float) -> str:
        """Since it began; nothing without a unit."""
        elapsed, new = now - self._start, self._done - self._before
        if self._unit is None or not new or not elapsed:
            return ""
        rate = new / elapsed
        left = "" if self._total is None else f", {_left((self._total - self._done) / rate)} left"
        return f"{rate:.3g} {self._unit}/s{left}"

    def advance(self, count: int = 1) -> None:
        self.count(count)
        now = monotonic()
        if now < self._due:
            return
        elapsed = now - self._start
        self._due = now + max(FIRST_S, SHARE * elapsed)
        of = "" if self._total is None else f" of {self._total}"
        rate = f", {rate}" if (rate := self.rate(now)) else ""
        click.echo(f"{self._description}: {self._done}{of}, {elapsed:.0f} s{rate}", err=True)


def _left(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    hours, rest = divmod(minutes, 60)
    return f"{minutes} min" if hours < 2 else f"{hours} h {rest} min"


def in_time(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
