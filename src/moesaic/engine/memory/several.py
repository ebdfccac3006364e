"""How many sequences run at once where that was left open.

Many at once are faster together, since a step reads an expert once for all of them. They share one
pool of blocks; but what layers with a window or a state hold of a sequence is there for each,
however short it is, and is to take a small part of memory only. Where more than the usual number
are of use, as in a batch, the same holds for all that grows with their number.
"""

from __future__ import annotations

from dataclasses import replace

from moesaic.engine.engine_settings import USUAL_SEQUENCES, EngineSettings, UsualSequences
from moesaic.engine.memory.plan_parts import accelerator_limit
from moesaic.engine.memory.sizes import Sizes
from moesaic.model_info.model_spec import ModelSpec

LEAST_SEQUENCES = 8
SHARE = 0.05  # of the memory that the KV cache lies in
_LENGTH = 4096  # tokens, of models that name no longest sequence


def with_sequences(
    spec: ModelSpec, settings: EngineSettings, available: int, accelerator_free: int | None
) -> EngineSettings:
    """The settings with a number of sequences."""
    asked = settings.max_sequences
    if not isinstance(asked, UsualSequences | None):
        return settings
    small = SHARE * (accelerator_limit(settings, accelerator_free) or available)
    one = Sizes.of(spec, replace(settings, max_sequences=1)).per_sequence
    wanted = USUAL_SEQUENCES if asked is None else int(asked)
    sequences = min(wanted, USUAL_SEQUENCES)
    while sequences > LEAST_SEQUENCES and sequences * one > small:
        sequences //= 2
    if sequences < USUAL_SEQUENCES:  # not even so many
        wanted = sequences
    usual = _growing(spec, settings, sequences)
    while wanted > sequences and _growing(spec, settings, wanted) - usual > small:
        wanted //= 2
    return replace(settings, max_sequences=UsualSequences(max(wanted, sequences)))


def _growing(spec: ModelSpec, settings: EngineSettings, sequences: int) -> int:
    """Bytes of what grows with the number of sequences, beside the pool of blocks."""
    sizes = Sizes.of(spec, replace(settings, max_sequences=sequences))
    length = settings.max_model_len or spec.max_context or _LENGTH
    own = sequences * sizes.per_sequence
    if settings.capabilities.own_memory:
        return own + sizes.device_workspace(length) + sizes.graphs(length)
    return own + sizes.workspace(length)
