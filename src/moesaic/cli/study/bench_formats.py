"""A bench for other programs and documents: CSV with every number, Markdown with the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from moesaic.cli.shared.output import print_json
from moesaic.cli.shared.table_formats import as_csv, as_markdown
from moesaic.cli.study.bench_tables import COLUMNS, print_bench, table_rows

_OF_THE_RUN = ("model", "layers", "weights", "routing_kind")  # repeated in every row


def print_as(form: str, result: Mapping[str, Any]) -> None:
    """`result` is what `bench --json` prints."""
    if form == "json":
        print_json(result)
    elif form == "csv":
        shared = {name: result[name] for name in _OF_THE_RUN}
        click.echo(as_csv({**shared, **row} for row in result["rows"]), nl=False)
    elif form == "md":
        click.echo(_markdown(result), nl=False)
    else:
        print_bench(dict(result))


def _markdown(result: Mapping[str, Any]) -> str:
    """The table, with what `bench` says above it in columns of its own."""
    own = ("model", "experts", "weights", "routing")
    first = result["rows"][0]
    said = (result["model"], first["expert_dtype"], result["weights"], result["routing_kind"])
    return as_markdown((*own, *COLUMNS), [(*said, *row) for row in table_rows(result)])
