"""Options that would change nothing: refused, not ignored.

An option that was not given is None here, whatever its default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from moesaic.core.errors import ImpossibleSetting

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings

_OTHER_PHASE = {"batch": "decode", "context": "decode", "prompts": "prefill"}  # where they count
_OF_ACCELERATORS = ("schedule", "cache", "prefetch", "promote")  # nothing to decide without one


def check_phase_options(asked: Mapping[str, Any]) -> None:
    phase = asked["phase"]
    for option, its_phase in _OTHER_PHASE.items():
        if phase in ("decode", "prefill") and phase != its_phase and asked.get(option) is not None:
            raise ImpossibleSetting(
                f"--{option} {asked[option]} means nothing in {phase}: leave it out, or use "
                f"--phase {its_phase}"
            )


def check_accelerator_options(
    asked: Mapping[str, Any], settings: EngineSettings, announce: bool
) -> None:
    """Policies decide what an accelerator holds and computes: without one they are refused, or,
    where `auto` found none, named if `announce`. Systems may also have a gate, which counts without
    one."""
    from moesaic.machines.accelerators import Automatic
    from moesaic.policies.policy_checks import needing_slots

    if settings.capabilities.moves or needing_slots(settings.policies) is not None:
        return  # a schedule that cannot do without is refused with the memory plan
    unused = [_written(name, asked[name]) for name in _OF_ACCELERATORS if _given(asked, name)]
    if not unused:
        return
    said = (
        f"{' and '.join(unused)} {'changes' if len(unused) == 1 else 'change'} nothing: there is "
        "no accelerator, so the CPU computes every expert"
    )
    if isinstance(settings.accelerator, Automatic):
        if announce:
            click.echo(f"note: {said}", err=True)
    else:
        raise ImpossibleSetting(
            f"{said}; add --accelerator emulated (or cuda), or leave "
            f"{'it' if len(unused) == 1 else 'them'} out"
        )


def _given(asked: Mapping[str, Any], name: str) -> bool:
    return asked.get(name) is not None


def _written(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {value}"
