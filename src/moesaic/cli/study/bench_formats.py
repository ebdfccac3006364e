"""A bench for other programs and documents: CSV with every number, Markdown with the table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from moesaic.cli.shared.output import cell, print_json
from moesaic.cli.study.bench_tables import COLUMNS, print_bench, table_rows

_OF_THE_RUN = ("model", "layers", "weights", "routing_kind")  # repeated in every row


def print_as(form: str, result: Mapping[str, Any]) -> None:
    """`result` is what `bench --json` prints."""
    if form == "json":
        print_json(result)
    elif form == "csv":
        click.echo(as_csv(result), nl=False)
    elif form == "md":
        click.echo(as_markdown(result), nl=False)
    else:
        print_bench(dict(result))


def as_csv(result: Mapping[str, Any]) -> str:
    """One line per row, every number as it was measured; of nested values, each as
    `outer.inner`."""
    rows = [
        {**{name: result[name] for name in _OF_THE_RUN}, **dict(_flat(row))}
        for row in result["rows"]
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def as_markdown(result: Mapping[str, Any]) -> str:
    """The table, with what `bench` says above it in columns of its own."""
    own = ("model", "experts", "weights", "routing")
    first = result["rows"][0]
    said = (result["model"], first["expert_dtype"], result["weights"], result["routing_kind"])
    rows = [(*said, *row) for row in table_rows(result)]
    lines = [_line((*own, *COLUMNS)), _line(["---"] * (len(own) + len(COLUMNS)))]
    return "".join(f"{line}\n" for line in (*lines, *(_line(row) for row in rows)))


def _line(cells: Sequence[object]) -> str:
    return "| " + " | ".join(cell(each).replace("|", "\\|") for each in cells) + " |"


def _flat(row: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
