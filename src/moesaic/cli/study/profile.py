"""`moesaic profile`: measure this machine and describe it like any other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.busy import warn_if_busy
from moesaic.cli.shared.option_stack import one_of
from moesaic.cli.shared.simulation_options import command_line, json_option

KINDS = ("none", "emulated")  # accelerators that can be measured

if TYPE_CHECKING:
    from moesaic.lab.profile.machine_profile import MachineProfile


@click.command()
@click.option(
    "--accelerator",
    metavar="KIND",
    help=f"Describe the machine with this accelerator only: {one_of(KINDS)}  [all]",
)
@click.option("--threads", type=int, metavar="N", help="Cores to use.  [all]")
@click.option(
    "--link-bandwidth",
    type=float,
    metavar="GB/S",
    help="Of copies to the emulated accelerator, in 10^9 bytes per second.  [4]",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the description here (with --accelerator).  [where the name `this` finds it]",
)
@json_option
@click.pass_context
def profile(
    context: click.Context,
    /,
    accelerator: str | None,
    threads: int | None,
    link_bandwidth: float | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Measure this machine with the engine's own kernels and write its description.

    Afterwards `this` is a machine for `simulate`, `compare` and `plan`, and `this-emulated` the
    same with an emulated accelerator; `--belief described` lets a run start without probing. Best
    on a machine that does nothing else; takes about a minute."""
    kinds = _kinds(accelerator, output)
    from moesaic.cli.shared.output import print_json
    from moesaic.engine.engine_settings import EngineSettings

    asked: dict[str, Any] = {} if link_bandwidth is None else {"link_gb_s": link_bandwidth}
    settings = [EngineSettings(accelerator=kind, threads=threads, **asked) for kind in kinds]
    warn_if_busy()
    described = []
    for each in settings:
        measured, path = _measure(each, output)
        described.append({**_as_dict(measured), "file": str(path)})
    if as_json:
        print_json({"profiles": described, "command": command_line(context)})
        return
    from moesaic.cli.study.profile_tables import print_profile

    for row in described:
        print_profile(row)


def _kinds(accelerator: str | None, output: str | None) -> tuple[str, ...]:
    from moesaic.cli.shared.out_files import check_file
    from moesaic.core.errors import ImpossibleSetting, UnknownName
    from moesaic.machines.accelerators import ACCELERATORS

    if accelerator is not None and accelerator not in ACCELERATORS:
        raise UnknownName("accelerator", accelerator, ACCELERATORS)
    measurable = [name for name, row in ACCELERATORS.items() if not row.capabilities.own_memory]
    if accelerator is not None and accelerator not in measurable:
        raise ImpossibleSetting(
            f"a machine with accelerator {accelerator!r} cannot be described yet: a run with it "
            "measures what it needs when it starts (--belief measured). Use --accelerator "
            f"{' or '.join(measurable)}"
        )
    if output is not None and accelerator is None:
        raise ImpossibleSetting(
            f"two descriptions cannot both go to {output!r}: add --accelerator none or emulated"
        )
    check_file("--output", output, (".toml",))
    return tuple(measurable) if accelerator is None else (accelerator,)


def _measure(settings: Any, output: str | None) -> tuple[MachineProfile, Path]:
    from moesaic.hardware.host import this_host, usable_cores
    from moesaic.hardware.machine_reader import machine_file
    from moesaic.hardware.machine_writer import save_machine
    from moesaic.lab.profile.machine_profile import contradictions, describe, measure
    from moesaic.machines.accelerators import ACCELERATORS

    name = ACCELERATORS[settings.accelerator].described_as
    cores = settings.threads or usable_cores()
    click.echo(f"measuring {name} on {cores} cores", err=True)
    measured = measure(settings, cores, lambda words: click.echo(f"  {words}", err=True))
    for odd in contradictions(measured):
        click.echo(f"other programs must have disturbed this: {odd}; measure again", err=True)
    path = machine_file(name) if output is None else Path(output)
    save_machine(describe(measured, this_host(), name), path)
    click.echo(f"wrote {path}", err=True)
    return measured, path


def _as_dict(measured: MachineProfile) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(measured)
