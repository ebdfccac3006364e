"""`moesaic policies`: what decides, by kind, and the systems made of it."""

from __future__ import annotations

from typing import Any

import click

from moesaic.cli.shared.output import print_json, print_table
from moesaic.cli.shared.simulation_options import json_option
from moesaic.core.registry import Registry
from moesaic.policies.cache import caches
from moesaic.policies.gate import gates
from moesaic.policies.prefetch import prefetches
from moesaic.policies.schedule import schedules
from moesaic.policies.systems import SYSTEMS, System

_TITLES = {
    "schedules": "--schedule: who computes which expert, and what is transferred for it",
    "caches": "--cache: which experts deserve GPU memory",
    "prefetches": "--prefetch: what to bring while the link is idle",
    "gates": "--gate: how many experts a token uses, and whether what came of it stands",
    "fills": "--fill: what is in GPU memory before the first step",
}


@click.command()
@json_option
def policies(as_json: bool) -> None:
    """List the policies and the systems made of them."""
    from moesaic.policies.placement import FILLS

    kinds = {
        "schedules": _summaries(schedules),
        "caches": _summaries(caches),
        "prefetches": _summaries(prefetches),
        "gates": _summaries(gates),
        "fills": {"auto": "what the schedule wants", **FILLS},
    }
    systems = {name: _described(system) for name, system in SYSTEMS.items()}
    if as_json:
        print_json({**kinds, "systems": systems})
        return
    for kind, summaries in kinds.items():
        print_table(_TITLES[kind], ("name", "what it does"), list(summaries.items()))
    rows = [(name, system["summary"], _parts(system)) for name, system in systems.items()]
    print_table("--system: known combinations", ("name", "what it does", "made of"), rows)


def _summaries(registry: Registry[Any]) -> dict[str, str]:
    return {name: registry.summary(name) for name in registry}


def _described(system: System) -> dict[str, Any]:
    return {
        "summary": system.summary,
        "schedule": system.schedule,
        "prefill_schedule": system.schedule_for("prefill"),
        "cache": system.cache,
        "prefetch": system.prefetch,
        "slots": "per-layer" if system.per_layer else "global",
        "promote": system.promote,
    }


def _parts(system: dict[str, Any]) -> str:
    parts = "\n".join(system[kind] for kind in ("schedule", "cache", "prefetch"))
    if system["prefill_schedule"] != system["schedule"]:
        parts += f"\n{system['prefill_schedule']} in prefill"
    return parts
