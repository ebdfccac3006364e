"""The machine that `moesaic plan` is about: this one, or one that is described."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.units import GB

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.hardware.machine_spec import MachineSpec

NOT_MEASURED = (
    "this machine is not measured yet: run `moesaic profile`, or name another with --machine (see "
    "`moesaic machines`)"
)


class AvailableMemory(NamedTuple):
    bytes: int
    words: str  # whose it is


def is_here(name: str | None) -> bool:
    from moesaic.hardware.machine_reader import CUDA, EMULATED, THIS

    return name is None or name.lower() in (THIS, EMULATED, CUDA)


def described_elsewhere(name: str | None) -> MachineSpec | None:
    """The described machine; None: this one is meant."""
    from moesaic.hardware.machine_reader import load_machine

    return None if is_here(name) else load_machine(str(name))


def options_for(asked: Mapping[str, Any], elsewhere: MachineSpec | None) -> dict[str, Any]:
    """The options with what the named machine says where they say nothing: which accelerator, how
    much memory it has, and which system is the fastest there."""
    from moesaic.cli.shared.advised_policies import advised_policies
    from moesaic.hardware.planned_host import PlannedHost
    from moesaic.machines.accelerators import ACCELERATORS, AUTO

    open_accelerator = asked["accelerator"] in (None, AUTO)
    if elsewhere is None:
        named = str(asked["machine"]).lower()
        kinds = {row.described_as: kind for kind, row in ACCELERATORS.items()}
        if open_accelerator and named in kinds:
            return {**asked, "accelerator": kinds[named]}
        return dict(asked)
    made: dict[str, Any] = {**asked, "host": PlannedHost.of(elsewhere)}
    advised = advised_policies(asked, elsewhere)
    return made if advised.system is None else {**made, "system": advised.system}


def usable_memory(
    settings: EngineSettings, elsewhere: MachineSpec | None
) -> tuple[EngineSettings, int | None]:
    """The settings, without a GPU here that cannot be used and was not named, and the bytes of the
    accelerator's memory; None: it has no limit of its own."""
    if elsewhere is not None:
        limited = settings.capabilities.moves
        return settings, round(elsewhere.gpu.memory_gb * GB) if limited else None
    if not settings.capabilities.own_memory:
        return settings, None
    from moesaic.engine.gpu_memory import usable_machine  # which needs torch

    return usable_machine(settings)


def description(settings: EngineSettings, name: str | None) -> MachineSpec | None:
    """The description of the named machine, or of this one if it was measured."""
    from moesaic.hardware.machine_reader import load_machine, measured_machines
    from moesaic.machines.accelerators import ACCELERATORS

    here = ACCELERATORS[settings.accelerator].described_as
    if name is None and here not in measured_machines():
        return None
    return load_machine(name or here)


def available_memory(gigabytes: float | None, elsewhere: MachineSpec | None) -> AvailableMemory:
    from moesaic.hardware.host import this_host

    if gigabytes is not None:
        if not 0 < gigabytes < float("inf"):
            raise ImpossibleSetting(f"--memory is {gigabytes:g} GB; it must be finite and above 0")
        return AvailableMemory(round(gigabytes * GB), "given by --memory")
    if elsewhere is not None:
        return AvailableMemory(round(elsewhere.host_memory_gb * GB), f"in {elsewhere.name}")
    available = this_host().available_bytes
    if available is None:
        raise ImpossibleSetting(
            "how much memory is available here cannot be found out: say it with --memory GB"
        )
    return AvailableMemory(available, "available here")
