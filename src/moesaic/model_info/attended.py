"""What attention reads and multiplies in a step, with the windows a model's layers have."""

from __future__ import annotations

from typing import NamedTuple

from moesaic.core.step import Step
from moesaic.model_info.model_spec import ModelSpec


class Attended(NamedTuple):
    """Of one layer, in the mean over all."""

    kv_tokens: float  # whose keys and values are read
    pairs: float  # of a new token and a token it looks at


def attended(model: ModelSpec, step: Step) -> Attended:
    if not model.window_layers:
        return Attended(step.kv_tokens, step.attention_pairs)
    window, share = model.sliding_window, len(model.window_layers) / model.num_layers
    near = sum(min(context, window - 1) + new for new, context in step.sequences)
    pairs = sum(_pairs_within(window, *each) for each in step.sequences)
    return Attended(
        (1 - share) * step.kv_tokens + share * near,
        (1 - share) * step.attention_pairs + share * pairs,
    )


def _pairs_within(window: int, new: int, context: int) -> float:
    """Of n new tokens after c, the i-th looks at c + i, or at the window."""
    growing = min(max(window - context, 0), new)
    return growing * (2 * context + growing + 1) / 2 + (new - growing) * window
