"""The memory plan: how much of which memory everything takes, before anything is allocated.

Slots and the length of sequences are chosen where the settings leave them open; what does not fit
is refused with the numbers and with changes that would make it fit.
"""

from __future__ import annotations

from functools import partial

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.fitting import decide
from moesaic.engine.memory.plan_parts import MemoryPlan, Part
from moesaic.engine.memory.refusal import refusal
from moesaic.model_info.model_spec import ModelSpec
from moesaic.policies.policy_checks import check_gate

__all__ = ["MemoryPlan", "Part", "plan_memory"]


def plan_memory(
    spec: ModelSpec,
    settings: EngineSettings,
    available_bytes: int,
    accelerator_free: int | None = None,
) -> MemoryPlan:
    """Raises ImpossibleSetting for what does not fit in `available_bytes` of main memory, or in
    what the settings allow the accelerator, or in the bytes that are free there (None: it has no
    memory of its own, or nobody knows)."""
    check_gate(settings.policies, spec.top_k)
    plan = decide(spec, settings, available_bytes, accelerator_free)
    if not plan.fits:
        decide_again = partial(
            decide, spec, available=available_bytes, accelerator_free=accelerator_free
        )
        raise ImpossibleSetting(refusal(plan, settings, decide_again))
    return plan
