"""What the demo compares with an emulated accelerator: the known systems, which differ in
everything, then caches under Moesaic's own schedule. Without the systems whose rules the emulated
accelerator cannot follow."""

from __future__ import annotations

from typing import Any, NamedTuple

from moesaic.core.errors import ImpossibleSetting
from moesaic.policies.systems import SYSTEMS, System

OWN = "moesaic"
_OTHER_CACHES = ("lru", "lfu", "mrs")


class DemoRun(NamedTuple):
    label: str
    options: dict[str, Any]


ENTRIES = (
    *(DemoRun(system, {"system": system}) for system in SYSTEMS),
    *(DemoRun(f"{OWN}+{cache}", {"system": OWN, "cache": cache}) for cache in _OTHER_CACHES),
)


def refused_here() -> dict[str, str]:
    """Systems that the emulated accelerator refuses -> why."""
    found = {name: _refusal(system) for name, system in SYSTEMS.items()}
    return {name: why for name, why in found.items() if why is not None}


def entries_here() -> list[DemoRun]:
    refused = refused_here()
    return [entry for entry in ENTRIES if entry.options["system"] not in refused]


def _refusal(system: System) -> str | None:
    from moesaic.machines.accelerators import EMULATED
    from moesaic.policies.policy_checks import check_real

    try:
        check_real(system.policies, EMULATED)
    except ImpossibleSetting as error:
        return str(error)
    return None
