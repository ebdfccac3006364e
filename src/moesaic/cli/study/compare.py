"""`moesaic compare`: policies x cache ratios x machines on one trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.option_stack import F, one_of
from moesaic.cli.shared.plugin_option import plugin_option
from moesaic.cli.shared.policy_options import moved_options, policy_list, promote_option
from moesaic.cli.shared.ray_option import ray_option
from moesaic.cli.shared.short_help import ShortHelpCommand
from moesaic.cli.shared.simulation_options import (
    CACHE_RATIO,
    MACHINE,
    build_settings,
    command_line,
    json_option,
    names,
    ratios,
    setup_options,
    workload_options,
)
from moesaic.cli.shared.table_formats import chosen_format, format_option
from moesaic.cli.shared.unused_options import check_phase_options
from moesaic.cli.shared.usual_options import COMPARE
from moesaic.cli.shared.what_if_options import (
    RUN_NAMES,
    SETTING,
    SWEEPING,
    Point,
    asks_for_help,
    check_names,
    points,
    print_names,
    read_changes,
    read_sweeps,
    set_option,
    sweep_option,
)
from moesaic.cluster.ray_cluster import check_ray
from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.hardware.machine_groups import GROUPS, expanded_groups
from moesaic.policies.policy_set import REGISTRIES, PolicySet
from moesaic.policies.systems import EVERY_SYSTEM, SYSTEMS

if TYPE_CHECKING:
    from moesaic.cli.study.comparison import ComparisonCell, Configuration

_BASELINE = "ktransformers"
_BARS, _WINNERS = _PLOTS = ("bars", "winners")
_LISTS = {"schedules": "schedule", "caches": "cache", "prefetches": "prefetch", "gates": "gate"}


def _list_option(plural: str, more: str = "") -> Callable[[F], F]:
    kind = _LISTS[plural]
    default = getattr(PolicySet(), kind)
    words = f"A comma list of {one_of(REGISTRIES[kind])}{more}.  [{default}]"
    return click.option(f"--{plural}", metavar="NAME[:PARAMETER=VALUE,...],...", help=words)


@click.command(cls=ShortHelpCommand, usual=COMPARE)
@workload_options
@click.option(
    "--machines",
    "--machine",
    default=MACHINE,
    show_default=True,
    help=f"A comma list; {one_of(GROUPS)} names several that people own.",
)
@set_option
@sweep_option
@click.option("--cache-ratios", help=f"A comma list.  [{CACHE_RATIO}]")
@click.option("--systems", help=f"A comma list of {one_of(EVERY_SYSTEM)}.  [{','.join(SYSTEMS)}]")
@_list_option("schedules", "; combined with --caches and --prefetches")
@_list_option("caches")
@_list_option("prefetches")
@_list_option("gates", "; with systems and with combinations")
@promote_option
@plugin_option
@moved_options
@click.option("--baseline", help="What speedups are relative to.  [ktransformers, or the first]")
@setup_options
@click.option("--jobs", type=int, help="Runs at the same time.  [one per core]")
@ray_option("Runs are shared out on a cluster")
@click.option("--plot", metavar="FILE", help="Draw the latencies: .png, .svg or .pdf")
@click.option(
    "--plot-kind",
    default=_BARS,
    show_default=True,
    metavar="KIND",
    help=f"{one_of(_PLOTS)}: latencies as bars, or which system is the fastest on which machine.",
)
@format_option
@json_option
@click.pass_context
def compare(context: click.Context, /, as_json: bool, **asked: Any) -> None:
    """Compare policies, cache ratios and machines on one trace.

    In lists of policies a comma before `parameter=` belongs to the policy before it:
    --caches lru,mrs:alpha=0.3,pool=global,belady names three caches.

    --sweep ndp.count=0,4,8 --sweep cpu.tflops=8,16 runs everything on each of six machines.

    Combinations that cannot be are shown as skipped, with the reason. Without --trace a model
    replays what `moesaic simulate` would."""
    from moesaic.cli.shared.out_files import check_picture

    if asks_for_help((*asked["changes"], *asked["sweeps"])):
        _help(asked)
        return
    if asked["ray"] is not None:
        check_ray(f"--ray {asked['ray']}")
    form = chosen_format(asked["format"], as_json)
    check_picture("--plot", asked["plot"])
    _check_plot_kind(asked)
    asked["changes"] = read_changes(asked["changes"])
    check_phase_options(asked)
    entries = _entries(asked)
    baseline = _baseline(asked["baseline"], [entry.label for entry in entries])
    cells = _run(asked, entries)
    _report(cells, baseline, form, command_line(context))
    if asked["plot_kind"] == _WINNERS and form == "table":
        _print_winners(cells, baseline)
    if asked["plot"] is not None:
        _draw(asked["plot"], cells, asked["plot_kind"], baseline)
        click.echo(f"wrote {asked['plot']}", err=True)


def _machines(asked: dict[str, Any]) -> list[str]:
    return expanded_groups(names("--machines", asked["machines"]))


def _help(asked: dict[str, Any]) -> None:
    from moesaic.hardware.machine_reader import load_machine

    for machine in _machines(asked):
        print_names(load_machine(machine), sweeping=True)


def _check_plot_kind(asked: dict[str, Any]) -> None:
    kind = asked["plot_kind"]
    if kind not in _PLOTS:
        raise UnknownName("kind of plot", kind, _PLOTS)
    if kind == _WINNERS and asked["plot"] is None:
        raise ImpossibleSetting(f"--plot-kind {kind} is of a picture: add --plot FILE")
    if kind == _WINNERS and asked["sweeps"]:
        raise ImpossibleSetting(
            f"--plot-kind {kind} has machines as rows and cache ratios as columns: leave --sweep "
            "out, or use --plot-kind bars"
        )


def _print_winners(cells: list[ComparisonCell], baseline: str) -> None:
    from moesaic.cli.shared.output import print_table
    from moesaic.cli.study.winners import CLEARLY, COLUMNS, rows, winners

    title = (
        f"The fastest per machine and cache ratio, in times the speed of {baseline} and of the\n"
        f"next; below {CLEARLY} of the next they are level"
    )
    print_table(title, COLUMNS, rows(winners(cells, baseline)))


def _draw(path: str, cells: list[ComparisonCell], kind: str, baseline: str) -> None:
    if kind == _WINNERS:
        from moesaic.cli.study.winners_picture import draw_winners

        draw_winners(path, cells, baseline)
    elif cells[0].swept:
        from moesaic.cli.study.sweep_picture import draw_sweep

        draw_sweep(path, cells)
    else:
        from moesaic.cli.study.compare_picture import draw_comparison

        draw_comparison(path, cells)


def _entries(asked: dict[str, Any]) -> list[Configuration]:
    from moesaic.cli.study.comparison import configurations

    lists = [
        policy_list(f"--{plural}", REGISTRIES[kind], asked[plural])
        for plural, kind in _LISTS.items()
    ]
    systems = names("--systems", asked["systems"])
    if not systems and not any(lists[:-1]):
        systems = list(SYSTEMS)
    return configurations(systems, *lists)


def _baseline(asked: str | None, labels: list[str]) -> str:
    if asked is None:
        return _BASELINE if _BASELINE in labels else labels[0]
    if asked not in labels:
        raise UnknownName("baseline", asked, labels)
    return asked


def _run(asked: dict[str, Any], entries: list[Configuration]) -> list[ComparisonCell]:
    from moesaic.cli.study.comparison import plan_grid, run_grid
    from moesaic.cli.study.simulate_recording import (
        announce_compilation,
        announced_workload,
        asked_trace,
        fitted,
    )
    from moesaic.cluster.studies import study_jobs

    if asked["jobs"] is not None and asked["jobs"] < 1:
        raise ImpossibleSetting(f"--jobs is {asked['jobs']}; it must be at least 1")
    machines = _machines(asked)
    shares = ratios("--cache-ratios", asked["cache_ratios"] or str(CACHE_RATIO))
    swept = _points(asked, machines, len(machines) * len(shares) * len(entries))
    cells = plan_grid(
        lambda options: build_settings(_at_point(_of_gate({**asked, **options}))),
        entries,
        machines,
        shares,
        swept,
    )
    settings = [cell.settings for cell in cells if cell.settings is not None]
    trace = asked_trace(asked, settings[0])
    lengths = iter(fitted(settings, trace, asked))
    cells = [c if c.settings is None else replace(c, settings=next(lengths)) for c in cells]
    # A trace that fits one run fits all: what is wrong with it is said before any of them.
    announced_workload(trace, next(c.settings for c in cells if c.settings is not None))
    announce_compilation()
    files = [] if trace is None or not Path(trace).is_file() else [str(Path(trace).resolve())]
    with study_jobs(asked["ray"], asked["jobs"], files) as jobs:
        return run_grid(cells, trace, jobs)


def _points(asked: dict[str, Any], machines: list[str], runs_each: int) -> list[Point]:
    """The points of all sweeps; a wrong name or value is reported before any run."""
    from moesaic.hardware.machine_reader import load_machine

    given = {name for name in RUN_NAMES if asked.get(name) is not None}
    if asked["cache_ratios"] is not None:
        given.add("cache_ratio")
    sweeps = read_sweeps(asked["sweeps"], {*given, *asked["changes"]})
    found = points(sweeps, runs_each)
    for spec in map(load_machine, machines):
        check_names(SETTING, spec, asked["changes"].items())
        check_names(SWEEPING, spec, ((s.name, value) for s in sweeps for value in s.values))
    return found


def _at_point(asked: dict[str, Any]) -> dict[str, Any]:
    """The options of one point of a sweep: those of the run, and numbers of the machine."""
    swept = dict(asked["point"])
    own = {name: value for name, value in swept.items() if name in RUN_NAMES}
    machine = {name: value for name, value in swept.items() if name not in RUN_NAMES}
    return {**asked, **own, "changes": {**asked["changes"], **machine}}


def _of_gate(asked: dict[str, Any]) -> dict[str, Any]:
    """A fallback ratio is for those of the compared gates that have fallbacks, and an accuracy for
    those whose tokens are routed again."""
    from moesaic.policies.gate import FULL, gates
    from moesaic.policies.gate.reuse import ROUTE_AGAIN

    gate = asked.get("gate")
    kind = gates.load(FULL if gate is None else gate.name)
    reruns = kind.reruns or kind.draft
    if gate is not None and gate.parameters.get("reuse", ROUTE_AGAIN) != ROUTE_AGAIN:
        asked = {**asked, "prefetch_accuracy": None}
    return asked if reruns else {**asked, "fallback_ratio": None}


def _report(cells: list[ComparisonCell], baseline: str, form: str, command: str) -> None:
    from moesaic.cli.shared.output import print_json
    from moesaic.cli.shared.table_formats import as_csv
    from moesaic.cli.study.compare_tables import as_rows, markdown, print_comparison

    if form == "json":
        print_json(as_rows(cells, baseline, command))
    elif form == "csv":
        click.echo(as_csv(as_rows(cells, baseline, command)), nl=False)
    elif form == "md":
        click.echo(markdown(cells, baseline), nl=False)
    else:
        print_comparison(cells, baseline)
