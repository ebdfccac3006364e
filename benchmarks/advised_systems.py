"""Which system each packaged machine gets where none is named.

`python -m benchmarks.advised_systems [MACHINE ...]` simulates the candidates on those machines (all
without compute units in their DIMMs) and writes src/moesaic/lab/profile/advised_systems.json, which
tests hold to be current. Takes about a minute per machine and core; without names, only machines
whose advice is not current are simulated."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from moesaic.core.worker_pool import worker_pool
from moesaic.hardware.machine_reader import known_machines, load_machine
from moesaic.lab.profile import advised_system
from moesaic.lab.profile.advised_system import (
    Advice,
    can_be_advised,
    entry,
    fingerprint,
    packaged,
)
from moesaic.lab.profile.choose_system import choose_system

FILE = Path(advised_system.__file__).with_name(advised_system.PACKAGED)
_PROCESSES = 2


def advisable() -> dict[str, str]:
    """Fingerprint by name."""
    specs = map(load_machine, known_machines())
    return {spec.name: fingerprint(spec) for spec in specs if can_be_advised(spec)}


def advise(name: str) -> tuple[str, dict[str, str]]:
    spec = load_machine(name)
    choice = choose_system(spec)
    return name, entry(spec, Advice(choice.system, choice.because))


def main(names: list[str]) -> None:
    keys, known = advisable(), packaged()
    kept = {key: known[key] for name, key in keys.items() if key in known and name not in names}
    wanted = names or [name for name, key in keys.items() if key not in kept]
    with worker_pool(min(_PROCESSES, max(len(wanted), 1))) as pool:
        for name, found in pool.map(advise, wanted):
            print(*found.values())
            kept[keys[name]] = found
    ordered = {key: kept[key] for key in keys.values() if key in kept}
    FILE.write_text(json.dumps(ordered, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
