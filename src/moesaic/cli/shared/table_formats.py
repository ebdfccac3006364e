"""Results for other programs and documents: the option `--format`, CSV with every number, and
Markdown tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from moesaic.cli.shared.option_stack import one_of
from moesaic.cli.shared.output import cell
from moesaic.core.errors import ImpossibleSetting, UnknownName

FORMATS = ("table", "json", "csv", "md")

format_option = click.option(
    "--format",
    metavar="FORMAT",
    help=f"Of the result: {one_of(FORMATS)}; csv has every number.  [table]",
)


def chosen_format(asked: str | None, as_json: bool) -> str:
    """What `--format` and `--json` say together."""
    form = asked or ("json" if as_json else FORMATS[0])
    if form not in FORMATS:
        raise UnknownName("format", form, FORMATS)
    if as_json and form != "json":
        raise ImpossibleSetting(f"both --json and --format {form} were given: give one of them")
    return form


def as_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """One line per row; of nested values, each as `outer.inner`. A row without a column that
    others have leaves it empty."""
    flat = [dict(_flat(row)) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def as_markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [_line(columns), _line(["---"] * len(columns)), *(_line(row) for row in rows)]
    return "".join(f"{line}\n" for line in lines)


def _line(cells: Sequence[object]) -> str:
    return "| " + " | ".join(cell(each).replace("|", "\\|") for each in cells) + " |"


def _flat(row: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
