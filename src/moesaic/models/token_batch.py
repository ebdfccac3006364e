"""One forward pass over several sequences: their new tokens stand in one list, without padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from moesaic.model_info.network import Rope
from moesaic.models.attentions.kv_cache import KVCache
from moesaic.models.attentions.rope import Rotation, rotation


class Segment(NamedTuple):
    """So many new tokens of the sequence in a slot of the cache."""

    slot: int
    tokens: int


class RowSpan(NamedTuple):
    """A segment's rows in the list of all new tokens."""

    slot: int
    rows: slice


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """`watch` notes what must be finite but need not show in the result: attention kernels take a
    row whose scores are all NaN or -inf for a masked one, and return zeros."""

    spans: tuple[RowSpan, ...]
    turns: Mapping[Rope, Rotation]  # one for every rotation that the network has
    cache: KVCache
    watched: list[torch.Tensor] = field(default_factory=list)  # [tokens] each
    watched_last: list[torch.Tensor] = field(default_factory=list)  # [spans] each
    _made: list[NDArray[np.int64]] = field(default_factory=list)

    @property
    def most_tokens(self) -> int:
        """New ones of one sequence."""
        return max([int(rows.stop - rows.start) for _, rows in self.spans])

    @property
    def in_blocks(self) -> NDArray[np.int64]:
        """See `kernels.attended.AttendedBatch`; made once for all layers."""
        if not self._made:
            cache, table = self.cache, self.cache.table
            for slot, rows in self.spans:
                cache.check_room(slot, rows.stop - rows.start)
            self._made.append(
                np.array(
                    [
                        (
                            rows.start,
                            rows.stop - rows.start,
                            cache.length(slot) + rows.stop - rows.start,
                            table.ctypes.data + slot * table.strides[0],
                        )
                        for slot, rows in self.spans
                    ],
                    dtype=np.int64,
                )
            )
        return self._made[0]

    def watch(self, rows: torch.Tensor) -> None:
        """rows [tokens, ...]: sums are not finite where one of the values is not."""
        self.watched.append(finite_sums(rows))

    def watch_sums(self, sums: torch.Tensor) -> None:
        """The same, added up already: [tokens], in any dtype."""
        self.watched.append(sums)

    def watch_last(self, rows: torch.Tensor) -> None:
        """The same of each sequence's last token: queries, of which only the last one's answer is
        asked for, and which are wider than keys."""
        if len(self.spans) < len(rows):
            ends = [span.rows.stop for span in self.spans]
            if rows.is_cpu and len(ends) > 1:
                rows = rows[[end - 1 for end in ends]]
            else:  # a list of rows takes longer, and would wait on its way to a GPU
                last = [rows[end - 1 : end] for end in ends]
                rows = torch.cat(last) if len(last) > 1 else last[0]
        self.watched_last.append(finite_sums(rows))

    def marked(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [tokens, width] as they are; NaN from a sequence's first token on of which
        something watched was not finite."""
        if not self.watched:
            return hidden
        broken = torch.stack(self.watched).sum(0).mul_(0.0)  # 0, or NaN
        last = broken.new_zeros(len(self.spans))
        if self.watched_last:
            last = torch.stack(self.watched_last).sum(0).mul_(0.0)
        if len(last) == len(broken):
            broken += last
        else:
            for number, (_, rows) in enumerate(self.spans):
                broken[rows] = broken[rows].cumsum(0) + last[number]
        return hidden + broken[:, None].to(hidden.dtype)


def finite_sums(rows: torch.Tensor) -> torch.Tensor:
    """[rows, ...] to [rows]: not finite where one of the values is not. Sums of fp16 would overflow
    on their own."""
    wide = torch.float32 if rows.dtype is torch.float16 else rows.dtype
    return rows.flatten(1).sum(-1, dtype=wide)


def make_batch(
    frequencies: Mapping[Rope, torch.Tensor],
    segments: Sequence[Segment],
    cache: KVCache,
    device: torch.device,
) -> TokenBatch:
    spans, positions, row = [], [], 0
    for slot, tokens in segments:
        start = cache.length(slot)
        spans.append(RowSpan(slot, slice(row, row + tokens)))
        positions.append(torch.arange(start, start + tokens, device=device))
        row += tokens
    at = torch.cat(positions)
    turns = {rope: rotation(rope, inverse, at) for rope, inverse in frequencies.items()}
    return TokenBatch(tuple(spans), turns, cache)
