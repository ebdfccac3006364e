"""Where a run's costs come from: what `moesaic profile` has stored, if it is of this machine as it
is now, or measurements when the run starts. Reads a file and asks the driver; needs no GPU."""

from __future__ import annotations

from typing import NamedTuple

from moesaic.core.errors import MoesaicError
from moesaic.engine.engine_settings import AUTO_BELIEF, EngineSettings
from moesaic.hardware.default_system import reason_noted
from moesaic.hardware.host import this_host, usable_cores
from moesaic.hardware.identity import changes_since
from moesaic.hardware.machine_reader import load_machine, machine_file
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.nvidia import nvidia_driver
from moesaic.kernels.instruction_sets import choose
from moesaic.machines.accelerators import ACCELERATORS
from moesaic.policies.systems import EVERY_SYSTEM

_AGAIN = "`moesaic profile` stores them"


class BeliefSource(NamedTuple):
    """`system` is the one that the description advises, and `because` why; None: no description is
    used, or it does not say."""

    described: bool
    words: str
    system: str | None = None
    because: str = ""


def belief_source(settings: EngineSettings, expert_dtype: str | None = None) -> BeliefSource:
    """`expert_dtype`: the precision that costs are needed for, where that is known."""
    if settings.belief != AUTO_BELIEF:
        described = settings.belief == "described"
        asked = "as `moesaic profile` described them" if described else "measured now"
        return BeliefSource(described, f"{asked}, as asked for")
    if not settings.capabilities.own_memory:
        return BeliefSource(False, "measured now")
    name = ACCELERATORS[settings.accelerator].described_as
    path = machine_file(name)
    if not path.is_file():
        return BeliefSource(False, f"measured now; {_AGAIN}, and runs start sooner")
    try:
        spec = load_machine(name)
    except MoesaicError as error:
        return BeliefSource(False, f"measured now, since the description is damaged: {error}")
    problem = _outdated(spec, settings) or _unstated(spec, expert_dtype)
    if problem is not None:
        return BeliefSource(False, f"measured now, since {problem}: {_AGAIN} again")
    system = spec.system if spec.system in EVERY_SYSTEM else None
    return BeliefSource(True, f"from {path}", system, reason_noted(spec) if system else "")


def _outdated(spec: MachineSpec, settings: EngineSettings) -> str | None:
    threads = settings.threads or usable_cores()
    found = changes_since(spec, this_host(), nvidia_driver(), threads, choose(settings.kernel))
    return "; ".join(found) or None


def _unstated(spec: MachineSpec, dtype: str | None) -> str | None:
    if dtype is None or (spec.gpu.multiplies(dtype) and spec.cpu.multiplies(dtype)):
        return None
    return f"{dtype} experts were not measured"
