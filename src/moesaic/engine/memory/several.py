"""How many sequences run at once where that was left open.

Many at once are faster together, since a step reads an expert once for all of them. They share one
pool of blocks; but what layers with a window or a state hold of a sequence is there for each,
however short it is, and is to take a small part of memory only.
"""

from __future__ import annotations

from dataclasses import replace

from moesaic.engine.engine_settings import USUAL_SEQUENCES, EngineSettings, UsualSequences
from moesaic.engine.memory.plan_parts import accelerator_limit
from moesaic.engine.memory.sizes import Sizes
from moesaic.model_info.model_spec import ModelSpec

LEAST_SEQUENCES = 8
SHARE = 0.05  # of the memory that the KV cache lies in


def with_sequences(
    spec: ModelSpec, settings: EngineSettings, available: int, accelerator_free: int | None
) -> EngineSettings:
    """The settings with a number of sequences."""
    if settings.max_sequences is not None:
        return settings
    memory = accelerator_limit(settings, accelerator_free) or available
    one = Sizes.of(spec, replace(settings, max_sequences=1)).per_sequence
    sequences = USUAL_SEQUENCES
    while sequences > LEAST_SEQUENCES and sequences * one > SHARE * memory:
        sequences //= 2
    return replace(settings, max_sequences=UsualSequences(sequences))
