"""Which system runs on a described machine where none is named, said in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from moesaic.hardware.machine_spec import MachineSpec


class AdvisedPolicies(NamedTuple):
    """`words` is the line to print once the other options are accepted; no system where
    policies are named, or where no systems were compared on the machine."""

    system: str | None = None
    words: str | None = None

    def announce(self) -> None:
        if self.words is not None:
            click.echo(self.words, err=True)


def advised_policies(asked: Mapping[str, Any], machine: MachineSpec) -> AdvisedPolicies:
    from moesaic.lab.profile.advised_system import advice_for, can_be_advised
    from moesaic.policies.policy_set import POLICY_FIELDS

    named = ("system", "quality", *POLICY_FIELDS)
    if any(asked.get(name) is not None for name in named) or not can_be_advised(machine):
        return AdvisedPolicies()
    found = advice_for(machine)
    if found is not None:
        words = f"policies: {found.system}, advised for {machine.name} by {found.because}"
        return AdvisedPolicies(found.system, words)
    how = "" if asked.get("changes") else f"; `moesaic machines {asked['machine']} --advise` does"
    return AdvisedPolicies(
        None, f"policies: moesaic; no systems were compared on {machine.name}{how}"
    )


def find_with_progress(machine: MachineSpec) -> None:
    from moesaic.cli.shared.output import progress
    from moesaic.cli.study.simulate_recording import announce_compilation
    from moesaic.lab.profile.advised_system import find_advice
    from moesaic.lab.profile.choose_system import cases_for
    from moesaic.lab.profile.system_candidates import CANDIDATES

    runs = len(CANDIDATES) * len(cases_for(machine))
    announce_compilation()
    with progress(f"simulating systems on {machine.name}", runs) as advance:
        find_advice(machine, advance)
