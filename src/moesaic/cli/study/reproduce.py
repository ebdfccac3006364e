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
@click.option("--quick", is_flag=True, help="Fewer problems and repetitions, for a first look.")
@click.option("--pictures", metavar="DIR", help="Draw accuracy against speed there, as .svg.")
@click.option("--jobs", type=click.IntRange(min=1), default=None, help="Processes.  [one per core]")
@json_option
def mobile(only: str, quick: bool, pictures: str | None, jobs: int | None, as_json: bool) -> None:
    """MoBiLE: tables II, III and IV and figure 5.

    Simulated at the paper's fallback ratios (table2 to fig5), answered by the bundled model
    (accuracy), and its speed measured on this machine (measured)."""
    from moesaic.cli.shared.out_files import check_pictures_folder
    from moesaic.cli.shared.output import print_json, print_table, progress
    from moesaic.reproductions.mobile import Reproduction

    check_pictures_folder("--pictures", pictures)
    reproduction, cores = Reproduction(only, quick), jobs or os.cpu_count() or 1
    with progress("simulating and measuring", reproduction.total(cores)) as advance:
        rows = reproduction.rows(cores, advance)
    if pictures is not None:
        from moesaic.cli.study.mobile_pictures import draw_all

        for name in draw_all(pictures, reproduction.found):
            click.echo(f"wrote {name}", err=True)
    if as_json:
        print_json([row.as_dict() for row in rows])
        return
    cells = [
        (row.id, row.claim, row.paper, f"{row.ours:.3g}", row.ratio and f"{row.ratio:.2f}")
        for row in rows
    ]
    print_table("MoBiLE", ("row", "claim", "paper", "ours", "ratio"), cells)
    click.echo("--json has every row with its conditions and the command that gives it again.")
