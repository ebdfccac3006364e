"""`moesaic trace compare`: how alike the routing of several traces is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.out_files import check_picture
from moesaic.cli.shared.output import print_json, print_table, progress
from moesaic.cli.shared.simulation_options import json_option
from moesaic.cli.trace.trace_files import open_named
from moesaic.core.errors import ImpossibleSetting, UnknownName

if TYPE_CHECKING:
    from moesaic.cli.trace.trace_columns import Column

MAX_TOKENS = 20_000


@click.command()
@click.argument("files", nargs=-1, required=True)
@click.option("--phase", help="decode | prefill  [each that a trace has]")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=MAX_TOKENS,
    show_default=True,
    help="How many tokens of each are looked at, in documents from all over the trace.",
)
@click.option(
    "--first",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the first N tokens of a document's prompt or answer: long and short ones then "
    "compare.",
)
@click.option("--plot", metavar="FILE", help="Draw load, reuse and hits: .png, .svg or .pdf")
@json_option
def compare(as_json: bool, files: tuple[str, ...], **asked: Any) -> None:
    """Show traces side by side: load, reuse, prediction, batches, caches.

    Prompts and answers of a trace have a column each. FILES are traces as for `trace info`, which
    also says what the statistics are; lru_25, mrs_25 and belady_25 are hits of a cache per layer
    with 25 % of its experts, kept between documents."""
    check_picture("--plot", asked["plot"])
    found = _columns(files, asked, quiet=as_json)
    if asked["plot"] is not None:
        from moesaic.cli.trace.trace_picture import draw_traces

        draw_traces(asked["plot"], found)
        click.echo(f"wrote {asked['plot']}", err=True)
    if as_json:
        print_json({"traces": [column.as_dict() for column in found]})
        return

    from moesaic.cli.trace.trace_columns import table

    labels = [column.label.replace(" ", "\n") for column in found]
    print_table("routing side by side", ("statistic", *labels), table(found))


def _columns(files: tuple[str, ...], asked: dict[str, Any], quiet: bool) -> list[Column]:
    from moesaic.cli.trace.trace_columns import PARTS, columns, work_of
    from moesaic.workloads.block import PHASES

    phase = asked["phase"]
    if phase is not None and phase not in PHASES:
        raise UnknownName("phase", phase, PHASES)
    work = work_of([(file, open_named(file)) for file in files], phase)
    wanted = "tokens" if phase is None else f"{phase} tokens"
    if not work:
        raise ImpossibleSetting(f"there are no {wanted} in {', '.join(files)}")
    shown = {file for file, _, _ in work}
    for file in dict.fromkeys(files):
        if file not in shown:
            click.echo(f"left out: there are no {wanted} in {file}", err=True)
    with progress("comparing", PARTS * len(work), quiet=quiet) as advance:
        return list(columns(work, asked["max_tokens"], advance, asked["first"]))
