"""`moesaic reproduce`: a paper's tables and figures, with the paper's value beside ours.

Tables fit a terminal; `--json` has the rows in full. The id of a row says what it is:
`figure/model/length/ratio/system`, `fig9/model/capacity/cache`, and for the claims with numbers
`claim@machine`, with `/speedup` behind it where it is a ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.output import print_json, print_table, progress
from moesaic.cli.shared.ray_option import ray_option
from moesaic.cli.shared.simulation_options import command_line, json_option, names
from moesaic.cli.study.reproduce_measured import (
    check_measured,
    check_not_measured,
    measured_options,
    print_measured,
    run_measured,
)
from moesaic.cli.study.reproduction_rows import titled
from moesaic.cluster.studies import study_jobs
from moesaic.core.errors import ImpossibleSetting, MissingExtra

if TYPE_CHECKING:
    from moesaic.reproductions.mobile.together import Gains
    from moesaic.reproductions.row import Row


@click.group()
def reproduce() -> None:
    """Reproduce a paper's tables and figures."""


@reproduce.command()
@click.option("--only", default="", metavar="ID", help="Only rows whose id starts like this.")
@click.option("--traces", metavar="DIR", help="Folder with real routing traces (.npz).")
@click.option("--jobs", type=click.IntRange(min=1), default=None, help="Processes.  [one per core]")
@ray_option("Rows are computed on a cluster")
@measured_options
@json_option
@click.pass_context
def hybrimoe(
    context: click.Context,
    /,
    only: str,
    traces: str | None,
    jobs: int | None,
    ray: str | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """HybriMoE: figures 7, 8, 9, table III and the average speedups, simulated.

    With --measured, dynamic against static placement on this machine's GPU instead, in real time:
    by CPU threads, share of the experts in GPU memory and length of the profile."""
    if asked["measured"]:
        _check_here(ray)
        _measured_hybrimoe(only, traces, jobs, as_json, asked, command_line(context))
        return
    from moesaic.reproductions.hybrimoe import Reproduction

    check_not_measured(asked)
    reproduction = Reproduction(only, traces)
    with (
        study_jobs(ray, jobs, _files(traces)) as processes,
        progress("simulating", reproduction.total) as advance,
    ):
        rows = reproduction.rows(processes, advance)
    if as_json:
        print_json([row.as_dict() for row in rows])
        return
    print_rows(rows)
    click.echo("--json has every row with its conditions and the command that gives it again.")


def _files(folder: str | None) -> list[str]:
    """The traces, which every machine reads."""
    return [] if folder is None else sorted(map(str, Path(folder).glob("*.npz")))


def _check_here(ray: str | None) -> None:
    if ray is not None:
        raise ImpossibleSetting(
            "--measured measures this machine, and --ray computes on others: leave one of them out"
        )


def _measured_hybrimoe(
    only: str,
    traces: str | None,
    jobs: int | None,
    as_json: bool,
    asked: dict[str, Any],
    command: str,
) -> None:

    if find_spec("torch") is None:
        raise MissingExtra("reproduce hybrimoe --measured", "engine")
    check_measured(only, jobs)
    result = run_measured(asked, traces, command)
    if as_json:
        print_json(result)
    else:
        print_measured(result)


@reproduce.command()
@click.option("--only", default="", metavar="ID", help="Only rows whose id starts like this.")
@click.option("--quick", is_flag=True, help="Fewer problems and repetitions, for a first look.")
@click.option(
    "--together", is_flag=True, help="Instead: big-little on other policies, which gains add up."
)
@click.option("--machines", help="A comma list, of --together.  [all that hold the model]")
@click.option("--batches", help="A comma list of 1, 8 and 64, of --together.  [all]")
@click.option("--plots", metavar="DIR", help="Draw accuracy against speed there, as .svg.")
@click.option("--jobs", type=click.IntRange(min=1), default=None, help="Processes.  [one per core]")
@ray_option("Rows are computed on a cluster")
@json_option
def mobile(only: str, jobs: int | None, ray: str | None, as_json: bool, **asked: Any) -> None:
    """MoBiLE: tables II, III and IV and figure 5.

    Simulated at the paper's fallback ratios (table2 to fig5), answered by the bundled model
    (accuracy), and its speed measured on this machine (measured)."""
    if asked["together"]:
        _check_together(only, asked)
    with study_jobs(ray, jobs) as processes:
        if asked["together"]:
            found = _together(asked, processes)
            rows, show = [each.row() for each in found], partial(_print_together, found)
        else:
            rows = _mobile_rows(only, asked, processes)
            show = partial(_print_mobile, rows)
    if as_json:
        print_json([row.as_dict() for row in rows])
    else:
        show()


def _mobile_rows(only: str, asked: dict[str, Any], cores: int) -> list[Row]:
    from moesaic.cli.shared.out_files import check_pictures_folder
    from moesaic.reproductions.mobile import Reproduction

    for name in ("machines", "batches"):
        if asked[name] is not None:
            raise ImpossibleSetting(f"--{name} is of --together: add that, or leave it out")
    pictures = asked["plots"]
    check_pictures_folder("--plots", pictures)
    reproduction = Reproduction(only, asked["quick"])
    if pictures is not None and not reproduction.drawable:
        raise ImpossibleSetting(
            f"--plots draws accuracies, and --only {only} measures none: use --only accuracy, or "
            "leave --only out, which measures speeds, too"
        )
    with progress("simulating and measuring", reproduction.total(cores)) as advance:
        rows = reproduction.rows(cores, advance)
    if pictures is not None:
        from moesaic.cli.study.mobile_pictures import draw_all

        for name in draw_all(pictures, reproduction.found):
            click.echo(f"wrote {name}", err=True)
    return rows


def _check_together(only: str, asked: dict[str, Any]) -> None:
    given = [name for name, has in (("only", only), *asked.items()) if has]
    for name in ("only", "quick", "plots"):
        if name in given:
            raise ImpossibleSetting(
                f"--{name} has no meaning with --together, which simulates a grid of its own: "
                "leave one of them out; --machines and --batches make the grid smaller"
            )


def _together(asked: dict[str, Any], cores: int) -> list[Gains]:
    from moesaic.reproductions.mobile.together import gains, grid, seconds

    batches = [int(each) for each in _listed("--batches", asked["batches"], str.isdecimal)]
    runs = grid(_listed("--machines", asked["machines"]), batches)
    with progress("simulating", len(runs)) as advance:
        return gains(seconds(runs, cores, advance))


def _listed(
    option: str, text: str | None, fine: Callable[[str], bool] = lambda word: True
) -> list[str]:
    if text is None:
        return []
    found = names(option, text)
    if not all(map(fine, found)):
        raise ImpossibleSetting(f"{option} is {text!r}: give whole numbers, as in 1,8")
    return found


def _print_mobile(rows: Sequence[Row]) -> None:

    cells = [
        (row.id, row.claim, row.paper, f"{row.ours:.3g}", row.ratio and f"{row.ratio:.2f}")
        for row in rows
    ]
    print_table(titled("MoBiLE", rows), ("row", "claim", "paper", "ours", "ratio"), cells)
    click.echo("--json has every row with its conditions and the command that gives it again.")


@reproduce.command()
@click.option("--only", default="", metavar="ID", help="Only rows whose id starts like this.")
@click.option("--traces", metavar="DIR", help="Folder with real routing traces (.npz).")
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Seeds of the routing in the rows seeds/...",
)
@click.option("--plots", metavar="DIR", help="Draw the figures into this folder.")
@click.option(
    "--plot-format",
    type=click.Choice(["png", "svg"]),
    default="png",
    show_default=True,
    help="Of the figures.",
)
@click.option("--jobs", type=click.IntRange(min=1), default=None, help="Processes.  [one per core]")
@ray_option("Rows are computed on a cluster")
@json_option
def trimoe(
    only: str,
    traces: str | None,
    seeds: int,
    plots: str | None,
    plot_format: str,
    jobs: int | None,
    ray: str | None,
    as_json: bool,
) -> None:
    """TriMoE: figures 3 and 5 to 9, table 3 and section 5.5, under each contention rule."""
    from moesaic.cli.study.reproduce_trimoe import draw, drawable, print_rows
    from moesaic.reproductions.trimoe import Reproduction

    drawable(plots)
    reproduction = Reproduction(only, traces, seeds)
    with (
        study_jobs(ray, jobs, _files(traces)) as processes,
        progress("simulating", reproduction.total) as advance,
    ):
        rows = reproduction.rows(processes, advance)
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


def _print_together(found: Sequence[Gains]) -> None:

    cells = [
        (
            each.run.machine,
            each.run.batch,
            "+".join(each.run.policies),
            *(f"{gain:.2f}" for gain in (each.gate, each.policies, each.both, each.product)),
            f"{each.both / each.policies:.2f}",
        )
        for each in found
    ]
    title = (
        "Speedups over gpu-only + lru + none: A big-little, B the policies, A|B both over B\n"
        "(synthetic routing)"
    )
    columns = ("machine", "batch", "policies", "A", "B", "both", "AxB", "A|B")
    print_table(title, columns, cells)


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
