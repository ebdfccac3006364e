"""Another capacity for a prepared model, once it is known what it will be asked."""

from __future__ import annotations

from dataclasses import replace
from sys import maxsize

from moesaic.engine.gpu_memory import accelerator_free
from moesaic.engine.memory.memory_plan import plan_memory
from moesaic.engine.preparation import Prepared
from moesaic.hardware.host import memory


def with_capacity(prepared: Prepared, sequences: int, length: int) -> Prepared:
    """The same model with room for so many sequences at once, each of so many tokens. Raises
    ImpossibleSetting where that does not fit."""
    settings = replace(prepared.settings, max_sequences=sequences, max_model_len=length)
    _, available = memory()
    plan = plan_memory(
        prepared.spec,
        settings,
        maxsize if available is None else available,  # where the system does not say, all fits
        accelerator_free(settings),
    )
    processor = prepared.input_processor.with_context(length)
    return replace(prepared, settings=settings, plan=plan, input_processor=processor)
