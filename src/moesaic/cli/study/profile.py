"""`moesaic profile`: measure this machine and describe it like any other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.busy import warn_if_busy
from moesaic.cli.shared.option_stack import one_of
from moesaic.cli.shared.simulation_options import command_line, json_option

KINDS = ("none", "emulated", "cuda")  # accelerators that can be measured

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.hardware.machine_spec import MachineSpec


@click.command()
@click.option(
    "--accelerator",
    metavar="KIND",
    help=f"Describe the machine with this accelerator only: {one_of(KINDS)}  "
    "[all that can be used here]",
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

    Afterwards `this` is a machine for `simulate`, `compare` and `plan`, `this-emulated` the same
    with an emulated accelerator and `this-cuda` with its GPU; `--belief described` lets a run
    start without probing, which with a GPU is the default. For a GPU, systems are simulated with
    the measured costs, and the fastest becomes the default. Best on a machine that does nothing
    else; takes about a minute for each."""
    kinds = _kinds(accelerator, output)
    from moesaic.cli.shared.output import print_json
    from moesaic.engine.engine_settings import EngineSettings

    asked: dict[str, Any] = {} if link_bandwidth is None else {"link_gb_s": link_bandwidth}
    settings = [EngineSettings(accelerator=kind, threads=threads, **asked) for kind in kinds]
    for each in settings:
        if each.capabilities.own_memory:
            from moesaic.lab.profile.cuda_profile import check_memory

            check_memory(each)
    warn_if_busy()
    described = [_measure(each, output) for each in settings]
    if as_json:
        print_json({"profiles": described, "command": command_line(context)})
        return
    from moesaic.cli.study.profile_tables import print_profile

    for row in described:
        print_profile(row)


def _kinds(accelerator: str | None, output: str | None) -> tuple[str, ...]:
    from moesaic.cli.shared.out_files import check_file
    from moesaic.core.errors import ImpossibleSetting, UnknownName
    from moesaic.machines.accelerators import ACCELERATORS, check_usable

    if accelerator is not None and accelerator not in ACCELERATORS:
        raise UnknownName("accelerator", accelerator, ACCELERATORS)
    if accelerator is not None:
        check_usable(accelerator)
    if output is not None and accelerator is None:
        raise ImpossibleSetting(
            f"several descriptions cannot all go to {output!r}: add --accelerator none, emulated "
            "or cuda"
        )
    check_file("--output", output, (".toml",))
    usable = tuple(name for name, row in ACCELERATORS.items() if row.problem() is None)
    return usable if accelerator is None else (accelerator,)


def _measure(settings: EngineSettings, output: str | None) -> dict[str, Any]:
    """Everything measured, once its description is written."""
    from moesaic.hardware.host import usable_cores
    from moesaic.hardware.machine_reader import machine_file
    from moesaic.hardware.machine_writer import save_machine
    from moesaic.machines.accelerators import ACCELERATORS

    name = ACCELERATORS[settings.accelerator].described_as
    cores = settings.threads or usable_cores()
    click.echo(f"measuring {name} on {cores} cores", err=True)
    measured = _with_gpu if settings.capabilities.own_memory else _without_gpu
    figures, spec = measured(settings, cores, name)
    path = machine_file(name) if output is None else Path(output)
    save_machine(spec, path)
    click.echo(f"wrote {path}", err=True)
    return {**figures, "file": str(path)}


def _without_gpu(
    settings: EngineSettings, cores: int, name: str
) -> tuple[dict[str, Any], MachineSpec]:
    from dataclasses import asdict

    from moesaic.hardware.host import this_host
    from moesaic.lab.profile.machine_profile import contradictions, describe, measure

    measured = measure(settings, cores, _progress)
    for odd in contradictions(measured):
        click.echo(f"other programs must have disturbed this: {odd}; measure again", err=True)
    return asdict(measured), describe(measured, this_host(), name)


def _with_gpu(
    settings: EngineSettings, cores: int, name: str
) -> tuple[dict[str, Any], MachineSpec]:
    from dataclasses import asdict

    from moesaic.cli.shared.output import progress
    from moesaic.hardware.default_system import with_default_system
    from moesaic.hardware.host import this_host
    from moesaic.hardware.nvidia import nvidia_driver
    from moesaic.kernels.instruction_sets import choose
    from moesaic.lab.profile import cuda_profile
    from moesaic.lab.profile.choose_system import cases_for, choose_system
    from moesaic.lab.profile.cuda_description import describe_cuda
    from moesaic.lab.profile.system_candidates import CANDIDATES

    measured = cuda_profile.profile_cuda(settings, cores, _progress)
    spec = describe_cuda(measured, this_host(), nvidia_driver(), choose(settings.kernel), name)
    runs = len(CANDIDATES) * len(cases_for(spec))
    with progress("simulating systems with these costs", runs) as advance:
        choice = choose_system(spec, advance=advance)
    spec = with_default_system(spec, choice.system, choice.because)
    figures = {**asdict(measured), "choice": asdict(choice)}
    return {"accelerator": settings.accelerator, **figures}, spec


def _progress(words: str) -> None:
    click.echo(f"  {words}", err=True)
