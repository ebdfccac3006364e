"""Grouped-query attention, with biases, normalised queries and keys, and a gate on the result where
a family has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from moesaic.kernels.attended import Attended, AttendedBatch, Blocks, Scores
from moesaic.kernels.rotated_heads import Angles, HeadNorms
from moesaic.model_info.network import GroupedAttentionSpec
from moesaic.models.attentions.rope import rotate
from moesaic.models.attentions.sequence_attention import attend_sequences
from moesaic.models.linear import Linear, together
from moesaic.models.norm import RmsNorm
from moesaic.models.token_batch import RowSpan, TokenBatch

if TYPE_CHECKING:
    from moesaic.kernels.native_attention import NativeAttention

NATIVE_ROWS = 16  # new tokens from which on packed weights' workers turn them, too


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    spec: GroupedAttentionSpec
    layer: int  # of the decoder, dense ones counted: the cache's number
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    query_norm: RmsNorm | None = None
    key_norm: RmsNorm | None = None
    sinks: torch.Tensor | None = None  # [heads]
    gate: Linear | None = None  # of the result, before the output projection

    def __call__(self, x: torch.Tensor, step: TokenBatch) -> torch.Tensor:
        query, key, value = self._turned(x, step)
        step.watch_last(query)
        scores = Scores(self.spec.scale, self.spec.window, self.sinks)
        packed = self.query.native
        native = None if packed is None else packed.runner.attention
        mixed = None
        if native is not None and native.wants_batch(step.most_tokens) and not self.spec.window:
            rows, scales = step.cache.rows(self.layer), step.cache.scales(self.layer)
            batch = AttendedBatch(query, key, value, rows, step.in_blocks, scales)
            if native.takes_batch(batch):
                mixed = native.attend_batch(batch, scores).flatten(1)
        if mixed is None:
            heads = (query, key, value)
            attended = [self._attended(heads, step, span, native) for span in step.spans]
            mixed = attend_sequences(query, attended, scores, native).flatten(1)
        if self.gate is not None:
            gate = self.gate(x)
            step.watch_last(gate)  # the sigmoid of an infinite one is a number
            mixed = mixed * gate.sigmoid()
        return self.output(mixed)

    def _turned(
        self, x: torch.Tensor, step: TokenBatch
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`projected`, with queries and keys turned; the step watches the keys."""
        rope = self.spec.rope
        if self._turns_natively(x):
            return self._turned_natively(x, step)
        query, key, value = self.projected(x)
        turn = step.turns[rope]
        query, key = rotate(rope, query, turn), rotate(rope, key, turn)
        step.watch(key)
        return query, key, value

    def _turns_natively(self, x: torch.Tensor) -> bool:
        """Many rows in bf16, all weights packed, and nothing but norms before the rotation."""
        rope = self.spec.rope
        linears = (self.query, self.key, self.value)
        norms = (self.query_norm, self.key_norm)
        return (
            all(each.native is not None for each in linears)
            and x.dtype == torch.bfloat16
            and len(x) >= NATIVE_ROWS
            and self.spec.clip is None
            and not (rope.interleaved and rope.dim < self.spec.head_dim)
            and all(norm is None or norm.weight.dtype == x.dtype for norm in norms)
        )

    def _turned_natively(
        self, x: torch.Tensor, step: TokenBatch
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        packed = self.query.native
        assert packed is not None, "only packed weights are multiplied natively"
        rope, head = self.spec.rope, self.spec.head_dim
        parts = together((self.query, self.key, self.value), x)
        query, key, value = (part.unflatten(-1, (-1, head)) for part in parts)
        norms = None
        if self.query_norm is not None and self.key_norm is not None:
            whole = self.spec.qk_norm is not None and self.spec.qk_norm.scope == "projection"
            weights = (self.query_norm.weight, self.key_norm.weight)
            norms = HeadNorms(*weights, self.query_norm.eps, whole)
        angles = Angles(*step.turns[rope], rope.dim, rope.interleaved)
        sums = packed.runner.rows.heads(query, key, norms, angles)
        step.watch_sums(sums)
        return query, key, value

    def projected(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys, values [tokens, heads, head], normed and clipped, not yet turned."""
        spec = self.spec
        scope = None if spec.qk_norm is None else spec.qk_norm.scope
        parts = together((self.query, self.key, self.value), x)
        if scope == "projection":
            parts[:2] = self._normed(parts[0], parts[1])
        if spec.clip is not None:
            # Plus 0, or NaN where clipping would hide that a value is infinite.
            parts = [part.clamp(-spec.clip, spec.clip) + 0.0 * part for part in parts]
        query, key, value = (part.unflatten(-1, (-1, spec.head_dim)) for part in parts)
        if scope == "head":
            query, key = self._normed(query, key)
        return query, key, value

    def _normed(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.query_norm is not None, "the rule says queries are normalised"
        assert self.key_norm is not None, "the rule says keys are normalised"
        return self.query_norm(query), self.key_norm(key)

    def _attended(
        self,
        heads: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        step: TokenBatch,
        span: RowSpan,
        native: NativeAttention | None,
    ) -> Attended:
        """A sequence's new keys and values, and all that they see."""
        query, key, value = heads
        cache, slot, rows, head = step.cache, span.slot, span.rows, self.spec.head_dim
        tokens = rows.stop - rows.start
        new = key[rows].flatten(1), value[rows].flatten(1)
        in_place = cache.reserve(self.layer, slot, tokens)
        if in_place is None and native is not None:
            keys, values = (part.unflatten(-1, (-1, head)) for part in cache.rows(self.layer))
            blocks = Blocks(cache.table[slot], cache.length(slot) + tokens)
            attended = Attended(rows, keys, values, 0, new, blocks, cache.scales(self.layer))
            if native.takes(query, attended):
                return attended
        seen = in_place or cache.extend(self.layer, slot, *new)
        keys, values = (part.unflatten(-1, (-1, head)) for part in seen)
        first = cache.length(slot) + tokens - len(keys)
        return Attended(rows, keys, values, first, new if in_place else None)
