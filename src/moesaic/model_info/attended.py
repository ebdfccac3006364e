"""What attention reads and multiplies in a step, with the windows a model's layers have."""

from __future__ import annotations

from typing import NamedTuple

from moesaic.core.step import Step
from moesaic.model_info.linear_attention import LinearAttentionSizes
from moesaic.model_info.model_spec import ModelSpec


class Attended(NamedTuple):
    """The positions attended to in one layer, in the mean over all."""

    kv_tokens: float  # whose keys and values are read
    pairs: float  # of a new token and a token it looks at
    state_bytes: float = 0.0  # of linear attention, read and written
    state_flops: float = 0.0
    windowed_tokens: float = 0.0  # of `kv_tokens`, those that are read by layers with a window


def attended(model: ModelSpec, step: Step) -> Attended:
    if model.linear_attention is not None:
        return _with_states(model, model.linear_attention, step)
    if not model.window_layers:
        return Attended(step.kv_tokens, step.attention_pairs)
    window, share = model.sliding_window, len(model.window_layers) / model.num_layers
    near = sum(min(context, window - 1) + new for new, context in step.sequences)
    pairs = sum(_pairs_within(window, *each) for each in step.sequences)
    return Attended(
        (1 - share) * step.kv_tokens + share * near,
        (1 - share) * step.attention_pairs + share * pairs,
        windowed_tokens=share * near,
    )


def _with_states(model: ModelSpec, linear: LinearAttentionSizes, step: Step) -> Attended:
    """A state is read and written once per sequence, however long it is."""
    share = len(model.linear_layers) / model.num_layers
    moved = 2 * linear.state_bytes * len(step.sequences)
    return Attended(
        (1 - share) * step.kv_tokens,
        (1 - share) * step.attention_pairs,
        share * moved,
        share * linear.flops_per_token * step.tokens,
    )


def _pairs_within(window: int, new: int, context: int) -> float:
    """The pairs of n new tokens after c: the i-th looks at c + i, or at the window."""
    growing = min(max(window - context, 0), new)
    return growing * (2 * context + growing + 1) / 2 + (new - growing) * window
