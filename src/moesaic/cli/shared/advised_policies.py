"""Which system runs on a described machine where none is named, said in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from moesaic.hardware.machine_spec import MachineSpec


def advised_system(asked: Mapping[str, Any], machine: MachineSpec) -> str | None:
    """None where policies are named, or where no systems were compared on this machine."""
    from moesaic.lab.profile.advised_system import advice_for, can_be_advised
    from moesaic.policies.policy_set import POLICY_FIELDS

    named = ("system", "quality", *POLICY_FIELDS)
    if any(asked.get(name) is not None for name in named) or not can_be_advised(machine):
        return None
    found = advice_for(machine)
    if found is not None:
        click.echo(
            f"policies: {found.system}, advised for {machine.name} by {found.because}", err=True
        )
        return found.system
    how = "" if asked.get("changes") else f"; `moesaic machines {asked['machine']} --advise` does"
    words = f"policies: moesaic; no systems were compared on {machine.name}{how}"
    click.echo(words, err=True)
    return None


def find_with_progress(machine: MachineSpec) -> None:
    from moesaic.cli.shared.output import progress
    from moesaic.cli.study.simulate_recording import announce_compilation
    from moesaic.lab.profile.advised_system import find_advice
    from moesaic.lab.profile.choose_system import CANDIDATES, cases_for

    runs = len(CANDIDATES) * len(cases_for(machine))
    announce_compilation()
    with progress(f"simulating systems on {machine.name}", runs) as advance:
        find_advice(machine, advance)
