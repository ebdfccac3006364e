"""Why a description names its default system: `moesaic profile` leaves that among the notes."""

from __future__ import annotations

from dataclasses import replace

from moesaic.hardware.machine_spec import MachineSpec


def with_default_system(spec: MachineSpec, system: str, because: str) -> MachineSpec:
    note = f"{_begins(system)}{because})."
    return replace(spec, system=system, notes=(*spec.notes, note))


def reason_noted(spec: MachineSpec) -> str:
    begins = _begins(spec.system)
    noted = next((note for note in spec.notes if note.startswith(begins)), None)
    if noted is None:
        return "its description says so"
    return noted.removeprefix(begins).removesuffix(".").removesuffix(")")


def _begins(system: str) -> str:
    return f"Default system: {system} ("
