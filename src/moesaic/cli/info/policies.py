"""`moesaic policies`: what decides, by kind, with parameters, and the systems made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from moesaic.cli.shared.output import print_json, print_table
from moesaic.cli.shared.plugin_option import plugin_option
from moesaic.cli.shared.simulation_options import json_option
from moesaic.core.parameter import Parameter
from moesaic.core.plugins import load_installed
from moesaic.core.registry import OURS, Registry
from moesaic.policies.cache import caches
from moesaic.policies.gate import gates
from moesaic.policies.layout import STRIPED, layouts
from moesaic.policies.policy_set import FILLS
from moesaic.policies.prefetch import prefetches
from moesaic.policies.schedule import schedules
from moesaic.policies.systems import EVERY_SYSTEM, System

_KINDS: dict[str, tuple[Registry[Any], str]] = {
    "schedules": (schedules, "which device computes which expert, and what is transferred for it"),
    "caches": (caches, "which experts are kept in GPU memory"),
    "prefetches": (prefetches, "what to transfer while the link is idle"),
    "layouts": (layouts, "where in main memory experts lie, and which move in the background"),
    "gates": (gates, "how many experts a token uses, and whether what came of it stands"),
}
_COLUMNS = ("of", "parameter", "default", "allowed", "meaning")


@click.command()
@plugin_option
@json_option
def policies(plugins: tuple[str, ...], as_json: bool) -> None:
    """List the policies, their parameters, and the systems made of them.

    Parameters are given behind the name, as in --cache mrs:alpha=0.2,pool=global. Policies of
    installed plugins, and of those named with --plugin, are listed with their origin."""
    for problem in load_installed():
        click.echo(f"warning: {problem}", err=True)
    if as_json:
        print_json(_listed())
        return
    for registry, what in _KINDS.values():
        rows = [(name, registry.summary(name), registry.origin(name)) for name in registry]
        _print_listed(f"--{registry.kind}: {what}", ("name", "what it does"), rows)
        parameters = _parameter_rows(registry)
        if parameters:
            print_table(f"parameters of --{registry.kind}", _COLUMNS, parameters)
    fills = list(FILLS.items())
    print_table(
        "--fill: what is in GPU memory before the first step", ("name", "what it does"), fills
    )
    systems = [
        (name, system.summary, _parts(system), system.origin)
        for name, system in EVERY_SYSTEM.items()
    ]
    columns = ("name", "what it does", "made of")
    _print_listed("--policies: known combinations", columns, systems)


def _print_listed(title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Each row ends with its origin, which is shown where some are not the package's own."""
    if any(row[-1] != OURS for row in rows):
        print_table(title, (*columns, "from"), rows)
    else:
        print_table(title, columns, [row[:-1] for row in rows])


def _listed() -> dict[str, Any]:
    kinds = {
        plural: {
            name: {
                "summary": registry.summary(name),
                "parameters": {p.name: _described(p) for p in registry.parameters(name)},
                "origin": registry.origin(name),
            }
            for name in registry
        }
        for plural, (registry, _) in _KINDS.items()
    }
    systems = {
        name: {"summary": system.summary, **system.policies.as_dict(), "origin": system.origin}
        for name, system in EVERY_SYSTEM.items()
    }
    return {**kinds, "fills": FILLS, "systems": systems}


def _described(parameter: Parameter) -> dict[str, Any]:
    return {
        "type": parameter.kind,
        "default": parameter.default,
        "allowed": parameter.allowed,
        "meaning": parameter.meaning,
    }


def _parameter_rows(registry: Registry[Any]) -> list[tuple[str, ...]]:
    owned = [(name, p) for name in registry for p in registry.entry(name).parameters]
    owned += [(f"every {registry.kind}", p) for p in registry.shared]
    return [(owner, p.name, p.write(p.default), p.allowed, p.meaning) for owner, p in owned]


def _parts(system: System) -> str:
    chosen = system.policies
    parts = [chosen.schedule, chosen.cache, chosen.prefetch]
    lines = [str(part) for part in parts]
    if chosen.layout.name != STRIPED:
        lines.append(f"{chosen.layout} layout")
    if chosen.prefill_schedule is not None:
        lines.append(f"{chosen.prefill_schedule} in prefill")
    return "\n".join(lines)
