"""The system that is advised for a described machine, found by simulation beforehand: what its
description says (`moesaic profile`), what the package brings for its own descriptions
(`python -m benchmarks.advised_systems`), or what was found here and kept (`moesaic machines NAME
--advise`). Looking it up simulates nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from moesaic.core.caches import writable_cache
from moesaic.core.files import whole_file
from moesaic.hardware.default_system import reason_noted
from moesaic.hardware.dimms import NdpDevice
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.lab.profile.system_candidates import CANDIDATES, conditions
from moesaic.policies.systems import EVERY_SYSTEM

VERSION = 1  # count it up where planners or the simulator change what is the fastest
PACKAGED = "advised_systems.json"  # beside this module


class Advice(NamedTuple):
    system: str
    because: str


def advice_for(spec: MachineSpec) -> Advice | None:
    """None where nothing is known of this machine as it is described now."""
    if spec.system in EVERY_SYSTEM:
        return Advice(spec.system, reason_noted(spec))
    key = fingerprint(spec)
    for known in (packaged(), _kept(key)):
        if key in known:
            return Advice(known[key]["system"], known[key]["because"])
    return None


def find_advice(spec: MachineSpec, advance: Callable[[int], None] = lambda runs: None) -> Advice:
    """Simulate the candidates, which takes a minute, and keep the result for `advice_for`."""
    from moesaic.lab.profile.choose_system import choose_system  # with the simulator

    choice = choose_system(spec, advance=advance)
    found, folder = Advice(choice.system, choice.because), writable_cache()
    if folder is not None:
        key = fingerprint(spec)
        path = _file(folder, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(str(path)) as stream:
            stream.write(json.dumps({key: entry(spec, found)}).encode())
    return found


def entry(spec: MachineSpec, found: Advice) -> dict[str, str]:
    """The entry as it is stored under the machine's fingerprint."""
    return {"machine": spec.name, **found._asdict()}


def can_be_advised(spec: MachineSpec) -> bool:
    """Candidates compute on GPU and CPU: where DIMMs compute too, others are to be compared."""
    return not any(isinstance(each, NdpDevice) for each in spec.flat.devices.values())


def fingerprint(spec: MachineSpec) -> str:
    """A digest of what the advice depends on: all that is described but words, and the
    candidates."""
    machine = [f"{where} {_content(part)}" for where, part in spec.parts()]
    return sha256("\n".join((*machine, _candidates())).encode()).hexdigest()[:32]


def _content(part: Any) -> str:
    """Every number and name; tables in the order of their keys."""
    fields = ((name, getattr(part, name)) for name in part.__dataclass_fields__)
    return repr([(n, sorted(v.items()) if isinstance(v, Mapping) else v) for n, v in fields])


def _candidates() -> str:
    policies = {name: EVERY_SYSTEM[name].policies.as_dict() for name in CANDIDATES}
    return repr((VERSION, conditions(), policies))


def packaged() -> dict[str, dict[str, str]]:
    return _read((files("moesaic.lab.profile") / PACKAGED).read_bytes())


def _kept(key: str) -> dict[str, dict[str, str]]:
    folder = writable_cache()
    path = None if folder is None else _file(folder, key)
    return _read(path.read_bytes()) if path is not None and path.is_file() else {}


def _file(folder: Path, key: str) -> Path:
    return folder / "advice" / f"{key}.json"


def _read(content: bytes) -> dict[str, dict[str, str]]:
    """A kept file that is damaged is as good as none."""
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    known = found.items() if isinstance(found, dict) else ()
    return {key: each for key, each in known if _is_advice(each)}


def _is_advice(each: object) -> bool:
    if not isinstance(each, dict) or not {"system", "because"} <= each.keys():
        return False
    return isinstance(each["because"], str) and each["system"] in (*EVERY_SYSTEM,)
