"""The smallest machine that a model can run on, from its memory plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from moesaic.core.units import GB
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.fitting import DEFAULT_LENGTH, decide
from moesaic.engine.memory.plan_parts import MemoryPlan
from moesaic.engine.memory.refusal import main_memory_needed
from moesaic.model_info.model_spec import ModelSpec
from moesaic.policies.policy_set import PolicySet

_PLENTY = 10**18  # bytes of main memory: nothing is cut to fit


@dataclass(frozen=True, slots=True)
class SmallestMachine:
    """Bytes of available memory. With a GPU, main memory still holds every expert."""

    context: int  # tokens of one sequence
    main_bytes: int  # without a GPU
    main_bytes_with_gpu: int
    gpu_bytes: int  # with the smallest cache of experts
    gpu_bytes_for_all: int  # with all experts in it


def smallest_machine(spec: ModelSpec, settings: EngineSettings) -> SmallestMachine:
    """For one sequence of a usual length, in the precisions of the settings, on the machine that
    they are for."""
    context = min(spec.max_context or DEFAULT_LENGTH, DEFAULT_LENGTH)

    one = replace(settings, accelerator="none", max_sequences=1, max_model_len=context)

    def planned(**changes: Any) -> MemoryPlan:
        return decide(spec, replace(one, **changes), _PLENTY)

    alone = planned(policies=PolicySet())  # which policies there are matters with slots only
    # In one byte no cache fits: the plan then has the smallest.
    least = planned(accelerator="cuda", gpu_memory_gb=1 / GB)
    return SmallestMachine(
        context=context,
        main_bytes=main_memory_needed(alone),
        main_bytes_with_gpu=main_memory_needed(least),
        gpu_bytes=least.accelerator_bytes,
        gpu_bytes_for_all=planned(accelerator="cuda", cache_ratio=1.0).accelerator_bytes,
    )
