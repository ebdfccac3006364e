"""Attention of all sequences of a step: natively where a sequence has many new tokens, or lies in
several places, and weights are packed; by PyTorch otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from moesaic.kernels.attended import Attended, Scores
from moesaic.models.attentions.attention import attend, attend_with_sinks

if TYPE_CHECKING:
    from moesaic.kernels.native_attention import NativeAttention


def attend_sequences(
    queries: torch.Tensor,
    sequences: Sequence[Attended],
    scores: Scores,
    native: NativeAttention | None,
) -> torch.Tensor:
    """queries [tokens, heads, width] of all sequences, one after the other; returns [tokens, heads,
    values' width]."""
    many: list[int] = []
    if native is not None and native.wants(sequences):
        many = [number for number, each in enumerate(sequences) if native.takes(queries, each)]
    if native is None or not many:
        pieces = [_attended(queries, each, scores) for each in sequences]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    mixed = queries.new_empty((*queries.shape[:2], sequences[0].values.shape[2]))
    native.attend(queries, [sequences[number] for number in many], scores, mixed)
    for number, each in enumerate(sequences):
        if number not in many:
            mixed[each.rows] = _attended(queries, each, scores)
    return mixed


def _attended(queries: torch.Tensor, attended: Attended, scores: Scores) -> torch.Tensor:
    rows, keys, values = attended.rows, attended.keys, attended.values
    assert attended.blocks is None, "native attention takes what lies in several places"
    attended.write()
    if scores.sinks is not None:
        return attend_with_sinks(
            queries[rows], keys, values, scores.scale, scores.sinks, scores.window
        )
    return attend(queries[rows], keys, values, scores.scale, scores.window)
