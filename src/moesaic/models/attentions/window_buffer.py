"""The KV cache of one layer with a sliding window: the last tokens of every sequence.

A slot keeps consecutive tokens in order, so that attention reads a view. When new ones do not fit,
what is still needed moves to the front: the tokens that the first new one sees, and `REWIND` more,
so that a sequence can be shortened by as many, or a step repeated, without reading it again.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from moesaic.core.errors import ImpossibleSetting
from moesaic.model_info.sliding_window import REWIND


class SavedWindow(NamedTuple):
    """What the next token of a sequence sees [tokens, width], in host memory."""

    first: torch.Tensor
    second: torch.Tensor

    @property
    def nbytes(self) -> int:
        return int(self.first.nbytes + self.second.nbytes)


class WindowBuffer:
    def __init__(
        self, window: int, slots: int, rows: int, widths: tuple[int, int], like: torch.Tensor
    ) -> None:
        """`rows`: tokens kept per slot, from `window_rows`; `like` gives dtype and device."""
        self._window, self._rows = window, rows
        self.first, self.second = (like.new_zeros((slots, rows, width)) for width in widths)
        self._starts = [0] * slots  # position of the first token kept

    def reserve(self, slot: int, at: int, new: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Vectors of all tokens that the one at position `at` sees, and then of `new` tokens from
        there on, for the caller to write."""
        end = at + new
        if end - self._starts[slot] > self._rows:
            self._make_room(slot, at, new)
        start = self._starts[slot]
        seen = slice(max(at - self._window + 1, start) - start, end - start)
        return self.first[slot, seen], self.second[slot, seen]

    def least_length(self, slot: int) -> int:
        """The shortest that the slot can be truncated to, other than 0: the next token must find
        what it sees."""
        start = self._starts[slot]
        return start + self._window - 1 if start else 0

    def reaches(self, slot: int, length: int) -> bool:
        """Whether what the token behind so many sees is there."""
        return length >= self.least_length(slot)

    def clear(self, slot: int) -> None:
        self._starts[slot] = 0

    def save(self, slot: int, length: int) -> SavedWindow:
        """What the token behind so many sees, which is there (see `least_length`)."""
        start = self._starts[slot]
        seen = slice(max(length - self._window + 1, start) - start, length - start)
        parts = (kept[slot, seen] for kept in (self.first, self.second))
        return SavedWindow(*(part.clone() if part.is_cpu else part.cpu() for part in parts))

    def restore(self, slot: int, length: int, saved: SavedWindow) -> None:
        for kept, part in zip((self.first, self.second), saved, strict=True):
            kept[slot, : len(part)] = part.to(kept.device)
        self._starts[slot] = length - len(saved.first)

    def copy(self, source: int, slot: int) -> None:
        for kept in (self.first, self.second):
            kept[slot] = kept[source]
        self._starts[slot] = self._starts[source]

    def _make_room(self, slot: int, at: int, new: int) -> None:
        start = max(at - (self._window - 1) - REWIND, self._starts[slot])
        if at - start + new > self._rows:
            raise ImpossibleSetting(
                f"a step with {new} new tokens of a sequence was asked for, but the KV cache of "
                f"layers with a sliding window takes {self._rows - (at - start)}: feed it in pieces"
            )
        moved = slice(start - self._starts[slot], at - self._starts[slot])
        for kept in (self.first, self.second):
            kept[slot, : at - start] = kept[slot, moved].clone()  # the two may overlap
        self._starts[slot] = start
