"""How fast a planned model would run, by the simulator: the same policies, precisions and slots on
a described machine, with synthetic routing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moesaic.core.dtypes import BITS_PER_WEIGHT
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.memory_plan import MemoryPlan
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.lab.simulate.result import Result
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_spec import ModelSpec
from moesaic.policies.policy_set import PolicySet

# A few steps, so that it takes seconds.
_DECODE: dict[str, Any] = {"tokens": 32, "warmup": 16}
_PREFILL: dict[str, Any] = {"prompts": 2, "warmup": 1}
_PROFILE_TOKENS = 128


@dataclass(frozen=True, slots=True)
class SpeedEstimate:
    decode: Result  # one sequence
    prefill: Result  # one prompt, as long as a step takes


def estimate_speed(
    spec: ModelSpec,
    settings: EngineSettings,
    plan: MemoryPlan,
    machine: MachineSpec,
    measured: bool = False,
) -> SpeedEstimate:
    """`measured`: the description is of a machine without a GPU, where `gpu` is the device of
    attention. Raises ImpossibleSetting where the machine is too small or a rate is not stated."""
    decode, prefill = (
        simulated(spec, settings, plan, machine, phase, measured) for phase in ("decode", "prefill")
    )
    return SpeedEstimate(_run(decode), _run(prefill))


def simulated(
    spec: ModelSpec,
    settings: EngineSettings,
    plan: MemoryPlan,
    machine: MachineSpec,
    phase: str,
    measured: bool,
) -> Settings:
    """What the simulator is to run."""
    if not settings.capabilities.moves:
        # Nothing is decided: the CPU computes every expert. A described machine has a GPU;
        # static-layers leaves it idle but for the head.
        schedule = "static-experts" if measured else "static-layers"
        policies = PolicySet.of(schedule=schedule, cache="pinned", prefetch="none")
        cache_ratio = 0.0
    else:
        policies = settings.policies.given_slots(plan.capacity.slots)
        cache_ratio = plan.cache_ratio
    length = min(settings.step_tokens, plan.capacity.length)
    return Settings(
        spec,
        machine,
        phase=phase,
        policies=policies,
        cache_ratio=cache_ratio,
        expert_dtype=plan.expert_dtype,
        dense_dtype=_dense_dtype(settings, plan),
        kv_dtype=settings.kv_dtype,
        profile_tokens=_PROFILE_TOKENS,
        checked=settings.checked,
        **(_DECODE if phase == "decode" else {**_PREFILL, "tokens": length}),
    )


def _dense_dtype(settings: EngineSettings, plan: MemoryPlan) -> str:
    """The dtype of all dense parts on an accelerator; the simulator knows no mixture."""
    whole = settings.capabilities.moves and plan.dense_dtype in BITS_PER_WEIGHT
    return plan.dense_dtype if whole else plan.dtype


def _run(settings: Settings) -> Result:
    return simulate(settings, choose_workload(None, settings).source)
