"""`moesaic machines`: the known machines, or every number of one with its unit and source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from moesaic.cli.shared.output import print_json, print_table
from moesaic.core.errors import ImpossibleSetting
from moesaic.hardware.dimms import CONTENTION, LINK_TOPOLOGIES, SHARING
from moesaic.hardware.machine_reader import (
    known_machines,
    load_machine,
    machine_file,
    measured_machines,
)
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.planned_host import has_gpu
from moesaic.hardware.quantities import unit_of

_OF_GPU = ("gpu.", "pcie.", "host.gpu_", "host.link_")  # numbers of a GPU and the link to it


@click.command()
@click.argument("machine", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--toml", "as_toml", is_flag=True, help="Print MACHINE's description file as it is.")
@click.option(
    "--advise",
    is_flag=True,
    help="Simulate the systems on MACHINE, which takes a minute: the fastest is kept as its "
    "default.",
)
def machines(machine: str | None, as_json: bool, as_toml: bool, advise: bool) -> None:
    """List the known machines, or show one.

    MACHINE is a known name, `this` for the machine that `moesaic profile` measured, or the path
    of a TOML description. To describe another, save a known one with --toml, edit its name and
    numbers, and give the file to --machine."""
    if as_toml and (machine is None or as_json):
        raise ImpossibleSetting("--toml prints one description: name a machine, and leave --json")
    if advise and (machine is None or as_toml):
        raise ImpossibleSetting("--advise is for one machine: name it, and leave --toml")
    if machine is None:
        _list(_all_machines(), as_json)
        return
    spec = load_machine(machine)
    if advise:
        from moesaic.cli.shared.advised_policies import find_with_progress

        find_with_progress(spec)
    if as_toml:
        click.echo(_description(machine), nl=False)
    else:
        _show(spec, as_json)


def _all_machines() -> list[MachineSpec]:
    """Under the names that --machine takes."""
    specs = [load_machine(name) for name in known_machines()]
    specs += [replace(load_machine(name), name=name) for name in measured_machines()]
    return specs


def _description(machine: str) -> bytes:
    """The file of a machine that is known to load."""
    if machine.lower() in measured_machines():
        return machine_file(machine.lower()).read_bytes()
    if machine.lower() in known_machines():
        return (files("moesaic.hardware") / "data" / f"{machine.lower()}.toml").read_bytes()
    return Path(machine).read_bytes()


def _describe(spec: MachineSpec) -> dict[str, Any]:
    """One machine as JSON: flat keys, each number with unit and source."""
    numbers = {
        key: {"value": value, "unit": unit_of(key), "source": spec.sources[key]}
        for key, value in spec.values().items()
    }
    return {
        "name": spec.name,
        "title": spec.title,
        "description": spec.description,
        "notes": list(spec.notes),
        "gpu": spec.gpu.name if has_gpu(spec) else None,
        "cpu": spec.cpu.name,
        "topology": _topology(spec),
        "numbers": numbers,
    }


def _advised(spec: MachineSpec) -> dict[str, str] | None:
    from moesaic.lab.profile.advised_system import advice_for

    found = advice_for(spec)
    return None if found is None else found._asdict()


def _topology(spec: MachineSpec) -> dict[str, Any]:
    """Which parts are connected to which, by name."""
    topology = spec.topology()
    return {
        "devices": {
            device.name: {"reads": [topology.placements[p].name for p in reads]}
            for device, reads in zip(topology.devices, topology.reads, strict=True)
        },
        "memories": {memory.name: {"owner": memory.owner} for memory in topology.memories},
        "links": {
            link.name: {"source": list(link.source), "destination": list(link.destination)}
            for link in topology.links
        },
        "placements": [placement.name for placement in topology.placements],
        "resources": {
            name: {"rule": part.rule, "lanes": list(part.draws_gb_s), "first": list(part.first)}
            for name, part in spec.resources.items()
        },
    }


def _further_parts(spec: MachineSpec) -> Iterator[str]:
    """Sentences on what a machine has in addition to GPU, CPU and their link."""
    shape = _topology(spec)
    if spec.unified is not None:
        yield (
            f"One memory of {spec.unified.memory_gb:g} GB for GPU and CPU: the GPU computes every "
            "expert where it lies, none is copied."
        )
    for name, device in spec.devices.items():
        reads = ", ".join(shape["devices"][name]["reads"]) or "nothing yet"
        yield f"Device {name}: {device.name}; computes from {reads}."
    for name in spec.links:
        ends = (", ".join(shape["links"][name][end]) for end in ("source", "destination"))
        yield f"Link {name}: from {' to '.join(ends)}."
    for name, part in spec.resources.items():
        first = f", {' and '.join(part.first)} first" if part.first else ""
        lanes = " and ".join(part.draws_gb_s)
        yield f"Shared {name}: {part.bandwidth_gb_s:g} GB/s for {lanes}, {part.rule}{first}."
    yield from _dimm_sentences(spec)


def _dimm_sentences(spec: MachineSpec) -> Iterator[str]:
    """Sentences on main memory that is DIMMs, and the rules that hold there."""
    dimms, ndp, link = spec.dimms, spec.ndp, spec.dimm_link
    if dimms is None:
        return
    yield (
        f"Main memory: {dimms.count} DIMMs on {dimms.channels} channels; experts are striped over "
        f"all or whole in one. Contention {dimms.contention}: {CONTENTION[dimms.contention]}. "
        f"Sharing {dimms.sharing}: {SHARING[dimms.sharing]}."
    )
    if ndp is not None:
        yield (
            f"NDP: {ndp.name}, in {ndp.count} DIMMs; {1000 * ndp.tflops:g} GFLOP/s and "
            f"{ndp.internal_gb_s:.1f} GB/s each."
        )
    if link is not None:
        yield (
            f"DIMM-Link {link.topology}: {LINK_TOPOLOGIES[link.topology]}; {link.links} x "
            f"{link.bandwidth_gb_s:g} GB/s."
        )


def _list(specs: list[MachineSpec], as_json: bool) -> None:
    if as_json:
        print_json({"machines": [_describe(spec) for spec in specs]})
        return
    columns = ("machine", "what it is", "GB", "GPU", "CPU", "link")
    rows = [
        (
            spec.name,
            spec.title,
            spec.gpu.memory_gb if has_gpu(spec) else None,
            round(spec.gpu.effective_bandwidth_gb_s) if has_gpu(spec) else None,
            round(spec.cpu.effective_bandwidth_gb_s),
            spec.pcie.bandwidth_gb_s if has_gpu(spec) else None,
        )
        for spec in specs
    ]
    print_table(
        "Known machines: GB of GPU memory, then GB/s reached (peak x efficiency)\n"
        "from GPU memory, from CPU memory and over the link",
        columns,
        rows,
    )


def _gpu_text(spec: MachineSpec) -> str:
    if has_gpu(spec):
        return f"GPU: {spec.gpu.name}."
    return "GPU: none, the CPU computes attention too (how fast: [gpu] of --toml)."


def _show(spec: MachineSpec, as_json: bool) -> None:
    if as_json:
        print_json({**_describe(spec), "advised": _advised(spec)})
        return
    rows = [
        (key, f"{value:g}", unit_of(key), spec.sources[key])
        for key, value in spec.values().items()
        if has_gpu(spec) or not key.startswith(_OF_GPU)
    ]
    print_table(f"{spec.name}: {spec.title}", ("number", "value", "unit", "source"), rows)
    click.echo(f"{_gpu_text(spec)} CPU: {spec.cpu.name}.")
    for sentence in _further_parts(spec):
        click.echo(sentence)
    click.echo(spec.description)
    for note in spec.notes:
        click.echo(f"- {note}")
    advised = _advised(spec)
    if advised is not None and not spec.system:
        click.echo(f"Default system: {advised['system']} ({advised['because']}).")
    known = spec.name if spec.name in known_machines() else known_machines()[0]
    click.echo(f"Your own: moesaic machines {known} --toml > my.toml, edit it, --machine my.toml")
