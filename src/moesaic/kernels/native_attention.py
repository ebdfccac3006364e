"""Causal attention of prompts on the native workers: keys and values are read where the KV cache
has them, and all sequences of a step are one call.

Precision: products are summed in fp32 and shares of the softmax rounded to bf16, as PyTorch does;
a row's bits depend neither on the batch nor on how a prompt was cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moesaic.kernels import _native
from moesaic.kernels.attended import Attended, AttendedBatch, Scores

# New ones of a sequence in a step; where none has as many, and all lie side by side, PyTorch is as
# fast.
MIN_TOKENS = 16
_WIDTH_STEP, _MAX_WIDTH = 32, 256


class NativeAttention:
    """Attention on one pool of workers, for one instruction set."""

    def __init__(self, pool: _native.Pool, isa: int) -> None:
        self.runner = _native.RowRunner(pool, isa)

    def wants(self, sequences: Sequence[Attended]) -> bool:
        """Whether a step's sequences are faster here."""
        return any(each.tokens >= MIN_TOKENS or each.blocks is not None for each in sequences)

    def takes(self, queries: torch.Tensor, attended: Attended) -> bool:
        """Whether heads are in bf16, or codes with scales, of widths that fill tiles."""
        parts = (queries, attended.keys, attended.values)
        stored = _stored(attended.scales)
        return (
            queries.is_contiguous()
            and _is_plain(queries)
            and all(_is_plain(part, stored) for part in parts[1:])
            and queries.shape[1] % attended.keys.shape[1] == 0
            and all(
                _is_writable(*each) for each in zip(parts[1:], attended.new or (), strict=False)
            )
        )

    def attend(
        self,
        queries: torch.Tensor,
        sequences: Sequence[Attended],
        scores: Scores,
        out: torch.Tensor,
    ) -> None:
        """Writes the rows of these sequences, which it `takes`, into out [tokens, heads, width of
        values]: bf16, contiguous; and what they have `new` into the cache."""
        keys, values = sequences[0].keys, sequences[0].values
        sinks = None if scores.sinks is None else scores.sinks.float().contiguous()
        shape = _shape(queries, keys, values, scores, sinks)
        if out.shape != (*queries.shape[:2], shape.value_width) or not out.is_contiguous():
            raise ValueError("attention writes one contiguous row for every query")
        self.runner.attend(shape, [_sequence(queries, each, out) for each in sequences])

    def wants_batch(self, tokens: int) -> bool:
        """Whether a step with so many new tokens of a sequence is faster here."""
        return tokens >= MIN_TOKENS

    def takes_batch(self, batch: AttendedBatch) -> bool:
        """Whether heads are in bf16, of widths that fill tiles, and side by side; in the cache they
        may be codes."""
        parts = (batch.queries, batch.keys, batch.values)
        stored = _stored(batch.scales)
        return (
            all(part.is_contiguous() and _is_plain(part) for part in parts)
            and all(part.dtype == stored for part in batch.rows)
            and batch.queries.shape[1] % batch.keys.shape[1] == 0
        )

    def attend_batch(self, batch: AttendedBatch, scores: Scores) -> torch.Tensor:
        """[tokens, heads, width of values], of a batch that it `takes`."""
        queries, keys, values = batch[:3]
        sinks = None if scores.sinks is None else scores.sinks.float().contiguous()
        out = queries.new_empty((*queries.shape[:2], values.shape[2]))
        given = _native.AttendedBatch()
        given.queries, given.out = queries.data_ptr(), out.data_ptr()
        given.new_keys, given.new_values = keys.data_ptr(), values.data_ptr()
        scales = batch.scales or (None, None)
        for to, heads, rows, of_rows in (
            (given.keys, keys, batch.rows[0], scales[0]),
            (given.values, values, batch.rows[1], scales[1]),
        ):
            _place(to, rows, of_rows)
            to.stride, to.head_stride = rows.stride(0), heads.shape[2]
        given.sequences, given.count = batch.sequences.ctypes.data, len(batch.sequences)
        self.runner.attend_batch(_shape(queries, keys, values, scores, sinks), given)
        return out


def _shape(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scores: Scores,
    sinks: torch.Tensor | None,
) -> _native.AttentionShape:
    shape = _native.AttentionShape()
    shape.heads, shape.kv_heads = queries.shape[1], keys.shape[1]
    shape.width, shape.value_width = queries.shape[2], values.shape[2]
    shape.scale, shape.window = scores.scale, scores.window
    shape.sinks = 0 if sinks is None else sinks.data_ptr()
    return shape


def _stored(scales: tuple[torch.Tensor, torch.Tensor] | None) -> torch.dtype:
    """Of keys and values in the cache."""
    return torch.bfloat16 if scales is None else torch.int8


def _place(to: _native.CachedHeads, values: torch.Tensor, scales: torch.Tensor | None) -> None:
    if scales is None:
        to.data = values.data_ptr()
        return
    if scales.dtype != torch.float16 or not scales.is_contiguous():
        raise ValueError("codes of keys and values have scales in fp16, one row after the other")
    to.codes, to.scales = values.data_ptr(), scales.data_ptr()


def _is_plain(heads: torch.Tensor, stored: torch.dtype = torch.bfloat16) -> bool:
    """[tokens, heads, width] in bf16, or as `stored`, with the values of a head side by side."""
    width: int = heads.shape[-1]
    return bool(
        heads.dtype == stored
        and heads.device.type == "cpu"
        and heads.stride(2) == 1
        and heads.stride(0) >= width
        and (heads.shape[1] == 1 or heads.stride(1) >= width)
        and width % _WIDTH_STEP == 0
        and 0 < width <= _MAX_WIDTH
    )


def _is_writable(heads: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether a token's heads are side by side in both."""
    return bool(
        new.is_contiguous()
        and new.dtype == torch.bfloat16
        and new.shape == (new.shape[0], heads.shape[1] * heads.shape[2])
        and (heads.shape[1] == 1 or heads.stride(1) == heads.shape[2])
    )


def _sequence(
    queries: torch.Tensor, attended: Attended, out: torch.Tensor
) -> _native.AttendedSequence:
    sequence = _native.AttendedSequence()
    sequence.queries = queries[attended.rows].data_ptr()
    sequence.out = out[attended.rows].data_ptr()
    sequence.tokens = attended.tokens
    sequence.positions, sequence.first = attended.positions, attended.first
    if attended.blocks is not None:
        sequence.blocks = attended.blocks.numbers.ctypes.data
    scales = attended.scales or (None, None)
    for to, heads, of_heads in (
        (sequence.keys, attended.keys, scales[0]),
        (sequence.values, attended.values, scales[1]),
    ):
        if attended.blocks is None and len(heads) != sequence.positions:
            raise ValueError("every token has a key and a value")
        _place(to, heads, of_heads)
        to.stride, to.head_stride = heads.stride(0), heads.stride(1)
    if attended.new is not None:
        keys, values = attended.new
        sequence.new_keys, sequence.new_values = keys.data_ptr(), values.data_ptr()
    return sequence
