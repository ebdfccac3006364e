"""`moesaic reproduce`: a paper's tables and figures, with the paper's value beside ours."""

from __future__ import annotations

import os

import click

from moesaic.cli.shared.simulation_options import json_option


@click.group()
def reproduce() -> None:
    """Reproduce a paper's tables and figures."""


@reproduce.command()
@click.option("--only", default="", metavar="ID", help="Only rows whose id starts like this.")
@click.option("--traces", metavar="DIR", help="Folder with real routing traces (.npz).")
@click.option("--jobs", type=click.IntRange(min=1), default=None, help="Processes.  [one per core]")
@json_option
def hybrimoe(only: str, traces: str | None, jobs: int | None, as_json: bool) -> None:
    """HybriMoE: figures 7, 8, 9, table III and the average speedups."""
    from moesaic.cli.shared.output import print_json, progress
    from moesaic.cli.study.reproduce_tables import print_rows
    from moesaic.reproductions.hybrimoe import Reproduction

    reproduction = Reproduction(only, traces)
    with progress("simulating", reproduction.total) as advance:
        rows = reproduction.rows(jobs or os.cpu_count() or 1, advance)
    if as_json:
        print_json([row.as_dict() for row in rows])
        return
    print_rows(rows)
    click.echo("--json has every row with its conditions and the command that gives it again.")


@reproduce.command()
@click.option("--only", default="", metavar="ID", help="Only rows whose id starts like this.")
@click.option("--jobs", type=click.IntRange(min=1), default=None, help="Processes.  [one per core]")
@json_option
def mobile(only: str, jobs: int | None, as_json: bool) -> None:
    """MoBiLE: speedups of tables II, III and IV and figure 5, at the paper's fallback ratios."""
    from moesaic.cli.shared.output import print_json, print_table, progress
    from moesaic.reproductions.mobile import Reproduction

    reproduction = Reproduction(only)
    with progress("simulating", reproduction.total) as advance:
        rows = reproduction.rows(jobs or os.cpu_count() or 1, advance)
    if as_json:
        print_json([row.as_dict() for row in rows])
        return
    cells = [
        (row.id, row.claim, row.paper, f"{row.ours:.2f}", row.ratio and f"{row.ratio:.2f}")
        for row in rows
    ]
    print_table("MoBiLE", ("row", "claim", "paper", "ours", "ratio"), cells)
    click.echo("--json has every row with its conditions and the command that gives it again.")


@reproduce.command()
@click.option("--only", default="", metavar="ID", help="Only rows whose id starts like this.")
@click.option("--traces", metavar="DIR", help="Folder with real routing traces (.npz).")
@click.option("--plots", metavar="DIR", help="Draw the figures into this folder.")
@click.option("--plot-format", type=click.Choice(["png", "svg"]), default="png", show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=None, help="Processes.  [one per core]")
@json_option
def trimoe(
    only: str,
    traces: str | None,
    plots: str | None,
    plot_format: str,
    jobs: int | None,
    as_json: bool,
) -> None:
    """TriMoE: figures 3 and 5 to 9, table 3 and section 5.5, under each contention rule."""
    from moesaic.cli.shared.output import print_json, progress
    from moesaic.cli.study.reproduce_trimoe import draw, drawable, print_rows
    from moesaic.reproductions.trimoe import Reproduction

    drawable(plots)
    reproduction = Reproduction(only, traces)
    with progress("simulating", reproduction.total) as advance:
        rows = reproduction.rows(jobs or os.cpu_count() or 1, advance)
    drawn = draw(plots, plot_format, rows) if plots is not None else []
    if as_json:
        print_json([row.as_dict() for row in rows])
        return
    print_rows(rows)
    for path in drawn:
        click.echo(f"drew {path}")
    if traces is None:
        click.echo("Rows of real routing are left out: they need --traces DIR.")
    click.echo("--json has every row with its conditions and the command that gives it again.")
