"""The memory plan: how much of which memory everything takes, before anything is allocated.

Slots and the length of sequences are chosen where the settings leave them open; what does not fit
is refused with the numbers and with changes that would make it fit.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.fitting import decide
from moesaic.engine.memory.plan_parts import MemoryPart, MemoryPlan
from moesaic.engine.memory.refusal import refusal
from moesaic.engine.memory.several import with_sequences
from moesaic.model_info.model_spec import ModelSpec
from moesaic.policies.policy_checks import check_gate

__all__ = ["MemoryPart", "MemoryPlan", "PlannedModel", "plan_memory", "plan_or_without_gpu"]


class PlannedModel(NamedTuple):
    settings: EngineSettings
    plan: MemoryPlan


def plan_memory(
    spec: ModelSpec,
    settings: EngineSettings,
    available_bytes: int,
    accelerator_free: int | None = None,
) -> MemoryPlan:
    """Raises ImpossibleSetting for what does not fit in `available_bytes` of main memory, or in
    what the settings allow the accelerator, or in the bytes that are free there (None: it has no
    memory of its own, or it is not known)."""
    check_gate(settings.policies, spec.top_k)
    settings = with_sequences(spec, settings, available_bytes, accelerator_free)
    plan = decide(spec, settings, available_bytes, accelerator_free)
    if not plan.fits:
        decide_again = partial(
            decide, spec, available=available_bytes, accelerator_free=accelerator_free
        )
        raise ImpossibleSetting(refusal(plan, settings, decide_again))
    return plan


def plan_or_without_gpu(
    spec: ModelSpec, settings: EngineSettings, available_bytes: int, accelerator_free: int | None
) -> PlannedModel:
    """The same, on the CPU where a model does not fit on a GPU that was not asked for; the settings
    then say why."""
    try:
        return _planned(spec, settings, available_bytes, accelerator_free)
    except ImpossibleSetting as error:
        without = settings.without_gpu(str(error))
        if without is None:
            raise
        try:
            return _planned(spec, without, available_bytes, None)
        except ImpossibleSetting:
            raise error from None


def _planned(
    spec: ModelSpec, settings: EngineSettings, available: int, accelerator_free: int | None
) -> PlannedModel:
    settings = with_sequences(spec, settings, available, accelerator_free)
    return PlannedModel(settings, plan_memory(spec, settings, available, accelerator_free))
