"""`moesaic fidelity`: predicted and measured decode time, side by side."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.busy import warn_if_busy
from moesaic.cli.shared.option_stack import one_of
from moesaic.cli.shared.plugin_option import plugin_option
from moesaic.cli.shared.simulation_options import command_line, json_option, names, ratios
from moesaic.core.errors import ImpossibleSetting

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.hardware.machine_spec import MachineSpec
    from moesaic.lab.fidelity import Comparison
    from moesaic.models.configs.architecture import Architecture

# By accelerator: what is promised, and what is run where nothing is asked for.
TOLERANCES = {"emulated": 0.2, "cuda": 0.1}
_MODELS = {"emulated": "olmoe-1b-7b", "cuda": "olmoe-1b-7b,qwen3-30b-a3b"}
_LAYERS = {"emulated": 4, "cuda": 16}
_RATIOS = {"emulated": "0.25,0.5", "cuda": "0.25,0.5,0.75"}


def _each(defaults: dict[str, Any]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in defaults.items())


@click.command()
@click.option(
    "--accelerator",
    metavar="KIND",
    default="auto",
    help=f"Of the real machine: {one_of(TOLERANCES)} | auto  "
    "[auto: the GPU, if one can be used, or emulated]",
)
@click.option(
    "--synthetic",
    metavar="A,B",
    help=f"Known models or a config.json; weights are random.  [{_each(_MODELS)}]",
)
@click.option("--layers", type=int, help=f"Only their first layers.  [{_each(_LAYERS)}]")
@click.option(
    "--systems",
    default="hybrimoe,ktransformers,adapmoe",
    show_default=True,
    metavar="A,B",
    help="Known systems to run.",
)
@plugin_option
@click.option(
    "--cache-ratios",
    metavar="X,Y",
    help=f"Shares of the experts that the accelerator holds.  [{_each(_RATIOS)}]",
)
@click.option("--tokens", type=int, default=48, show_default=True, help="Decode steps measured.")
@click.option("--expert-dtype", default="bf16", show_default=True, help="Of the routed experts.")
@click.option(
    "--layerwise", is_flag=True, help="With a GPU: drive steps from Python, capture none."
)
@click.option("--threads", type=int, metavar="N", help="Cores to use.  [all]")
@click.option(
    "--link-bandwidth",
    type=float,
    metavar="GB/S",
    help="Of the emulated accelerator.  [2]",
)
@click.option(
    "--machine",
    metavar="TOML",
    help="Predict with this description.  [with a GPU: `moesaic profile`'s; or measured now]",
)
@click.option("-o", "--output", metavar="FILE", help="Write the result as .json, too.")
@json_option
@click.pass_context
def fidelity(context: click.Context, /, as_json: bool, **asked: Any) -> None:
    """How well the simulator predicts this machine.

    Runs random-weight models on the real machine and in the simulator: the same routing, placement
    and policies, medians of decode time. Best on a machine that does nothing else."""
    from moesaic.cli.shared.out_files import check_file
    from moesaic.cli.shared.output import print_json, print_table

    check_file("--output", asked["output"], (".json",))
    if asked["tokens"] < 8:
        raise ImpossibleSetting(f"--tokens is {asked['tokens']}; medians need at least 8 steps")
    asked = _with_defaults(asked)
    machine, rows = _compare(asked)
    described = _described(machine, rows, asked, command_line(context))
    if asked["output"] is not None:
        _write(asked["output"], described)
    if as_json:
        print_json(described)
        return
    table = [
        [r["model"], r["system"], r["cache_ratio"], r["predicted_ms"], r["measured_ms"],
         f"{r['error']:+.0%}", r["driven"]]
        for r in described["rows"]
    ]  # fmt: skip
    cut = f"{described['layers']} layers of each model, {asked['expert_dtype']} experts"
    title = f"Decode, {cut}, random weights, synthetic routing"
    columns = ["model", "system", "cached", "predicted ms", "measured ms", "error", "driven by"]
    print_table(title, columns, table)
    worst, tolerance = described["worst_error"], TOLERANCES[asked["accelerator"]]
    good = worst <= tolerance
    verdict = "all within" if good else "NOT all within"
    advice = "" if good else "; on a busy machine, repeat it when it is idle"
    click.echo(f"worst {worst:.1%}: {verdict} {tolerance:.0%}{advice}")


def _with_defaults(asked: dict[str, Any]) -> dict[str, Any]:
    """What was not asked for, by the accelerator."""
    from moesaic.core.errors import UnknownName
    from moesaic.machines.accelerators import AUTO, check_usable, choose

    kind = asked["accelerator"]
    if kind == AUTO:
        kind = "cuda" if choose(AUTO) == "cuda" else "emulated"
    if kind not in TOLERANCES:
        raise UnknownName("accelerator", kind, (*TOLERANCES, AUTO))
    check_usable(kind)
    if kind == "cuda" and asked["link_bandwidth"] is not None:
        raise ImpossibleSetting(
            f"--link-bandwidth {asked['link_bandwidth']:g} is of the emulated accelerator, but "
            "the GPU's link is as fast as it is: leave it out"
        )
    if kind != "cuda" and asked["layerwise"]:
        raise ImpossibleSetting(
            f"--layerwise is about steps with a GPU, and accelerator {kind!r} has no others: leave "
            "it out"
        )
    defaults: dict[str, dict[str, Any]] = {
        "synthetic": _MODELS,
        "layers": _LAYERS,
        "cache_ratios": _RATIOS,
    }
    chosen = {
        name: values[kind] if asked[name] is None else asked[name]
        for name, values in defaults.items()
    }
    return {**asked, **chosen, "accelerator": kind}


def _compare(asked: dict[str, Any]) -> tuple[MachineSpec, list[Comparison]]:
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.lab.fidelity import needed_memory
    from moesaic.models.configs.synthetic_architecture import synthetic_architecture
    from moesaic.policies.systems import load_system

    systems = names("--systems", asked["systems"])
    cached = ratios("--cache-ratios", asked["cache_ratios"])
    settings = EngineSettings(
        accelerator=asked["accelerator"],
        threads=asked["threads"],
        link_gb_s=asked["link_bandwidth"] or 2.0,
        expert_dtype=asked["expert_dtype"],
    )
    for system in systems:  # what cannot run is refused before anything is measured
        settings.with_system(load_system(system))
    models = names("--synthetic", asked["synthetic"])
    architectures = [synthetic_architecture(name, asked["layers"]) for name in models]
    for architecture in architectures:
        needed_memory(architecture.spec, settings, cached)
    warn_if_busy()
    machine = _machine(asked, settings)
    rows: list[Comparison] = []
    for architecture in architectures:
        rows += _of_model(architecture, machine, settings, systems, cached, asked)
    return machine, rows


def _of_model(
    architecture: Architecture,
    machine: MachineSpec,
    settings: EngineSettings,
    systems: list[str],
    cached: list[float],
    asked: dict[str, Any],
) -> list[Comparison]:
    from moesaic.cli.shared.output import progress
    from moesaic.engine.assemble import synthetic_store
    from moesaic.engine.expert_kernel import kernel_for
    from moesaic.lab.fidelity import RealRuns, compare_bodies, routing
    from moesaic.models.synthetic_model import synthetic_decoder

    spec, dtype = architecture.spec, asked["expert_dtype"]
    decoder = synthetic_decoder(architecture, "bf16")
    kernel = kernel_for(architecture.expert_shape, dtype, decoder.dtype, settings)
    with progress(f"making random experts of {spec.name}", spec.num_expert_blocks) as advance:
        store = synthetic_store(decoder, dtype, advance, kernel)
    source = routing(spec, machine, asked["tokens"])
    runs = RealRuns(settings, layerwise=asked["layerwise"])
    with progress("measuring and predicting", len(systems) * len(cached)) as advance:
        return compare_bodies(
            decoder, store, machine, source, runs, systems, cached, asked["tokens"],
            report=lambda row: advance(1),
        )  # fmt: skip


def _machine(asked: dict[str, Any], settings: EngineSettings) -> MachineSpec:
    """The one that was named, or the stored description of this machine with its GPU, or one made
    now."""
    from moesaic.engine.belief_source import belief_source
    from moesaic.hardware.machine_reader import CUDA, load_machine

    gpu = settings.capabilities.own_memory
    click.echo("using the GPU" if gpu else "using an emulated accelerator", err=True)
    if asked["machine"]:
        return load_machine(asked["machine"])
    if not settings.capabilities.own_memory:
        return _measured(settings)
    source = belief_source(settings, asked["expert_dtype"])
    if source.described and not asked["layerwise"]:
        click.echo(f"predicting with costs {source.words}", err=True)
        return load_machine(CUDA)
    return _measured_gpu(settings, asked["layerwise"])


def _measured_gpu(settings: EngineSettings, layerwise: bool) -> MachineSpec:
    from moesaic.hardware.host import this_host, usable_cores
    from moesaic.hardware.nvidia import nvidia_driver
    from moesaic.kernels.instruction_sets import choose
    from moesaic.lab.profile import cuda_profile
    from moesaic.lab.profile.cuda_description import describe_cuda

    click.echo("measuring this machine", err=True)
    cores = settings.threads or usable_cores()
    measured = cuda_profile.profile_cuda(
        settings, cores, lambda words: click.echo(f"  {words}", err=True), layerwise=layerwise
    )
    return describe_cuda(measured, this_host(), nvidia_driver(), choose(settings.kernel))


def _measured(settings: EngineSettings) -> MachineSpec:
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
        "accelerator": asked["accelerator"],
        "expert_dtype": asked["expert_dtype"],
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
