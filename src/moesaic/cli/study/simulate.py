"""`moesaic simulate`: one model, one machine, one set of policies, one trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.short_help import ShortHelpCommand
from moesaic.cli.shared.simulation_options import (
    CACHE_RATIO,
    MACHINE,
    build_settings,
    command_line,
    json_option,
    policy_options,
    setup_options,
    workload_options,
)
from moesaic.cli.shared.usual_options import SIMULATE
from moesaic.cli.shared.what_if_options import (
    SETTING,
    asks_for_help,
    check_names,
    print_names,
    read_changes,
    set_option,
)

if TYPE_CHECKING:
    from moesaic.cli.shared.advised_policies import AdvisedPolicies
    from moesaic.cli.study.simulate_recording import Recording
    from moesaic.lab.simulate.result import Result


@click.command(cls=ShortHelpCommand, usual=SIMULATE)
@workload_options
@click.option("--machine", default=MACHINE, show_default=True, help="A known machine or a TOML.")
@set_option
@click.option(
    "--cache-ratio",
    type=float,
    help=f"Share of all routed experts that GPU memory holds.  [{CACHE_RATIO}]",
)
@policy_options
@setup_options
@click.option("--timeline", metavar="FILE", help="Draw one step: .png, .svg or .pdf")
@click.option("--perfetto", metavar="FILE", help="Write the steps as .json for ui.perfetto.dev")
@json_option
@click.pass_context
def simulate(context: click.Context, /, as_json: bool, **asked: Any) -> None:
    """Run one model on one simulated machine.

    Without policies this is the system that is advised for the machine (`moesaic machines NAME`
    says which), or moesaic. Without --trace a model replays the routing
    recorded from it where the package has that, and synthetic routing otherwise (or with --trace
    synthetic). Models, machines and policies with their parameters are listed by `moesaic models`,
    `moesaic machines` and `moesaic policies`."""
    from moesaic.cli.shared.out_files import TRACES, check_file, check_picture
    from moesaic.cli.shared.output import print_json
    from moesaic.hardware.machine_reader import load_machine

    if asks_for_help(asked["changes"]):
        print_names(load_machine(asked["machine"]), sweeping=False)
        return
    asked["changes"] = read_changes(asked["changes"])
    check_picture("--timeline", asked["timeline"])
    check_file("--perfetto", asked["perfetto"], TRACES)
    check_names(SETTING, load_machine(asked["machine"]), asked["changes"].items())
    advised = _advised(asked)
    settings = build_settings({**asked, "system": asked["system"] or advised.system})

    from moesaic.cli.study.simulate_recording import (
        announced_workload,
        asked_trace,
        fitted,
        run_with_progress,
    )

    trace = asked_trace(asked, settings)
    (settings,) = fitted([settings], trace, asked)
    workload = announced_workload(trace, settings)
    advised.announce()
    record = asked["timeline"] is not None or asked["perfetto"] is not None
    result, recording = run_with_progress(settings, workload.source, record)
    described = {**result.as_dict(), "command": command_line(context)}
    if recording is not None:
        _write(asked, result, recording, described["command"])
    if as_json:
        print_json(described)
        return

    from moesaic.cli.study.simulate_summary import print_summary

    print_summary(described)


def _advised(asked: dict[str, Any]) -> AdvisedPolicies:
    """The advice is about decoding one sequence."""
    from moesaic.cli.shared.advised_policies import AdvisedPolicies, advised_policies
    from moesaic.cli.shared.simulation_options import with_changes
    from moesaic.hardware.machine_reader import load_machine

    if (asked["phase"], asked["batch"] or 1) != ("decode", 1):
        return AdvisedPolicies()
    machine = with_changes(load_machine(asked["machine"]), asked["changes"])
    return advised_policies(asked, machine)


def _write(asked: dict[str, Any], result: Result, recording: Recording, command: str) -> None:
    if asked["timeline"] is not None:
        from moesaic.cli.shared.timeline_picture import draw_timeline

        draw_timeline(asked["timeline"], result, recording)
        click.echo(f"wrote {asked['timeline']}", err=True)
    if asked["perfetto"] is not None:
        from moesaic.cli.shared.perfetto import write_perfetto

        write_perfetto(asked["perfetto"], result, recording, command)
        kept, steps = len(recording.steps), result.settings.steps
        click.echo(f"wrote {asked['perfetto']}: {kept} of {steps} steps", err=True)
