"""`moesaic fidelity`: predicted and measured decode time, side by side."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.busy import warn_if_busy
from moesaic.cli.shared.simulation_options import command_line, json_option, names, ratios
from moesaic.core.errors import ImpossibleSetting

if TYPE_CHECKING:
    from moesaic.hardware.machine_spec import MachineSpec
    from moesaic.lab.fidelity import Comparison

TOLERANCE = 0.2


@click.command()
@click.option(
    "--synthetic",
    metavar="SPEC",
    default="olmoe-1b-7b",
    show_default=True,
    help="A known model or a config.json; its weights are random.",
)
@click.option("--layers", type=int, default=4, show_default=True, help="Only its first layers.")
@click.option(
    "--systems",
    default="hybrimoe,ktransformers,adapmoe",
    show_default=True,
    metavar="A,B",
    help="Known systems to run.",
)
@click.option("--cache-ratios", default="0.25,0.5", show_default=True, metavar="X,Y")
@click.option("--tokens", type=int, default=48, show_default=True, help="Decode steps measured.")
@click.option("--threads", type=int, metavar="N", help="Cores to use.  [all]")
@click.option("--link-bandwidth", type=float, metavar="GB/S", default=2.0, show_default=True)
@click.option(
    "--machine", metavar="TOML", help="Predict with this description.  [measured now, first]"
)
@click.option("-o", "--output", metavar="FILE", help="Write the result as .json, too.")
@json_option
@click.pass_context
def fidelity(context: click.Context, /, as_json: bool, **asked: Any) -> None:
    """How well the simulator predicts this machine.

    Runs a random-weight model on the emulated accelerator and in the simulator: the same routing,
    placement and policies, medians of decode time. Best on a machine that does nothing else."""
    from moesaic.cli.shared.out_files import check_file
    from moesaic.cli.shared.output import print_json, print_table

    check_file("--output", asked["output"], (".json",))
    if asked["tokens"] < 8:
        raise ImpossibleSetting(f"--tokens is {asked['tokens']}; medians need at least 8 steps")
    machine, rows = _compare(asked)
    described = _described(machine, rows, asked, command_line(context))
    if asked["output"] is not None:
        _write(asked["output"], described)
    if as_json:
        print_json(described)
        return
    table = [
        [r["system"], r["cache_ratio"], r["predicted_ms"], r["measured_ms"], f"{r['error']:+.0%}"]
        for r in described["rows"]
    ]
    cut = f"{described['model']} cut to {described['layers']} layers"
    title = f"Decode, {cut}, random weights, synthetic routing"
    columns = ["system", "cached", "predicted ms", "measured ms", "error"]
    print_table(title, columns, table)
    worst = described["worst_error"]
    good = worst <= TOLERANCE
    verdict = "all within" if good else "NOT all within"
    advice = "" if good else "; on a busy machine, repeat it when it is idle"
    click.echo(f"worst {worst:.1%}: {verdict} {TOLERANCE:.0%}{advice}")


def _compare(asked: dict[str, Any]) -> tuple[MachineSpec, list[Comparison]]:
    from moesaic.cli.shared.output import progress
    from moesaic.engine.assemble import synthetic_store
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.hardware.machine_reader import load_machine
    from moesaic.lab.fidelity import compare_bodies, needed_memory, routing
    from moesaic.models.synthetic_model import synthetic_architecture, synthetic_decoder
    from moesaic.policies.systems import load_system

    systems = names("--systems", asked["systems"])
    cached = ratios("--cache-ratios", asked["cache_ratios"])
    settings = EngineSettings(
        accelerator="emulated", threads=asked["threads"], link_gb_s=asked["link_bandwidth"]
    )
    for system in systems:  # what cannot run is refused before anything is measured
        settings.with_system(load_system(system))
    architecture = synthetic_architecture(asked["synthetic"], asked["layers"])
    needed_memory(architecture.spec, settings, cached)
    warn_if_busy()
    machine = load_machine(asked["machine"]) if asked["machine"] else _measured(settings)
    decoder = synthetic_decoder(architecture, "bf16")
    blocks = architecture.spec.num_expert_blocks
    with progress("making random experts", blocks) as advance:
        store = synthetic_store(decoder, "bf16", advance)
    source = routing(architecture.spec, machine, asked["tokens"])
    with progress("measuring and predicting", len(systems) * len(cached)) as advance:
        rows = compare_bodies(
            decoder, store, machine, source, settings, systems, cached, asked["tokens"],
            report=lambda row: advance(1),
        )  # fmt: skip
    return machine, rows


def _measured(settings: Any) -> MachineSpec:
    from moesaic.hardware.host import this_host, usable_cores
    from moesaic.hardware.machine_reader import EMULATED
    from moesaic.lab.profile.machine_profile import describe, measure

    click.echo("measuring this machine", err=True)
    cores = settings.threads or usable_cores()
    measured = measure(settings, cores, lambda words: click.echo(f"  {words}", err=True))
    return describe(measured, this_host(), EMULATED)


def _described(
    machine: MachineSpec, rows: list[Comparison], asked: dict[str, Any], command: str
) -> dict[str, Any]:
    from moesaic.hardware.machine_writer import machine_toml

    return {
        "model": asked["synthetic"],
        "layers": asked["layers"],
        "tokens": asked["tokens"],
        "rows": [{**asdict(row), "error": row.error} for row in rows],
        "worst_error": max(abs(row.error) for row in rows),
        "command": command,
        "machine": machine_toml(machine),
    }


def _write(path: str, described: dict[str, Any]) -> None:
    import json

    from moesaic.core.files import whole_file

    with whole_file(path) as stream:
        stream.write(json.dumps(described, indent=2).encode() + b"\n")
