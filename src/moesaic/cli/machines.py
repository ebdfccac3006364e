"""`moesaic machines`: the known machines, or every number of one with its unit and source."""

from __future__ import annotations

from typing import Any

import click

from moesaic.cli.output import print_json, print_table
from moesaic.hardware.load import known_machines, load_machine
from moesaic.hardware.spec import MachineSpec

# Ending of a field's name -> unit; the first that fits counts.
_UNITS = {"_gb_s": "GB/s", "_gb": "GB", "_us": "us", "_tflops": "TFLOP/s"}


@click.command()
@click.argument("machine", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def machines(machine: str | None, as_json: bool) -> None:
    """List the known machines, or show one.

    MACHINE is a known name, or the path of a TOML description."""
    if machine is None:
        _list([load_machine(name) for name in known_machines()], as_json)
    else:
        _show(load_machine(machine), as_json)


def _describe(spec: MachineSpec) -> dict[str, Any]:
    """One machine as JSON: flat keys, each number with unit and source."""
    numbers = {
        key: {"value": value, "unit": _unit(key), "source": spec.sources[key]}
        for key, value in spec.values().items()
    }
    return {
        "name": spec.name,
        "title": spec.title,
        "description": spec.description,
        "notes": list(spec.notes),
        "gpu": spec.gpu.name,
        "cpu": spec.cpu.name,
        "numbers": numbers,
    }


def _list(specs: list[MachineSpec], as_json: bool) -> None:
    if as_json:
        print_json({"machines": [_describe(spec) for spec in specs]})
        return
    columns = ("machine", "what it is", "GPU GB", "GPU", "CPU", "PCIe")
    rows = [
        (
            spec.name,
            spec.title,
            spec.gpu.memory_gb,
            spec.gpu.memory_bandwidth_gb_s,
            spec.cpu.memory_bandwidth_gb_s,
            spec.pcie.bandwidth_gb_s,
        )
        for spec in specs
    ]
    print_table("Known machines: GPU memory in GB, bandwidths in GB/s", columns, rows)


def _show(spec: MachineSpec, as_json: bool) -> None:
    if as_json:
        print_json(_describe(spec))
        return
    rows = [
        (key, f"{value:g}", _unit(key), spec.sources[key]) for key, value in spec.values().items()
    ]
    print_table(f"{spec.name}: {spec.title}", ("number", "value", "unit", "source"), rows)
    click.echo(f"GPU: {spec.gpu.name}. CPU: {spec.cpu.name}.")
    click.echo(spec.description)
    for note in spec.notes:
        click.echo(f"- {note}")


def _unit(key: str) -> str:
    name = key.split(".")[1]
    for ending, unit in _UNITS.items():
        if name.endswith(ending):
            return unit
    return "fraction" if name.endswith("_efficiency") else ""
