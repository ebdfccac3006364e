"""The KV cache: keys and values of earlier tokens.

A cache has slots, one per running sequence. Per layer and token it keeps two vectors, whatever
they mean to the attention: keys and values, or the latent and its rotary key. A layer with a
sliding window keeps only the last tokens, one with linear attention a state.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting
from moesaic.model_info.kv_blocks import KV_BLOCK, blocks_of
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.sliding_window import REWIND, window_rows
from moesaic.models.attentions.recurrent_buffer import RecurrentBuffer

_GONE = "what the next one sees has left the sliding window, or no state is as old"


class KVCache(Protocol):
    def length(self, slot: int) -> int:
        """Tokens remembered; the next one's position."""

    def reserve(
        self, layer: int, slot: int, tokens: int
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """A layer's vectors of all tokens so far, or of those that the new ones see, and then of
        `tokens` new ones, for the caller to write. The length stays, so that every layer of a step
        writes at the same place. None where they do not lie side by side: `extend` copies them."""

    def extend(
        self, layer: int, slot: int, first: torch.Tensor, second: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, with the new tokens' vectors [new tokens, width] written, wherever they lie."""

    def states(self, layer: int) -> RecurrentBuffer:
        """Of a layer with linear attention, which writes them at `length`."""

    def advance(self, slot: int, tokens: int) -> None:
        """All layers have written: the tokens count from now on."""

    def truncate(self, slot: int, length: int) -> None:
        """Forget what lies beyond; 0 frees the slot."""


def cache_widths(spec: ModelSpec) -> tuple[int, int]:
    """How wide the two vectors of a token are."""
    if spec.latent_attention is not None:
        return spec.latent_attention.kv_lora_rank, spec.latent_attention.qk_rope_head_dim
    width = spec.num_kv_heads * spec.head_dim
    return width, width


class BlockCache:
    """`first` and `second` [layers, blocks, KV_BLOCK, width] hold the vectors of every token that a
    layer without a window has seen; they stay where they are, so that captured kernels find them.
    Row `slot` of `table` [slots, blocks of the longest sequence] says which blocks a sequence has,
    in order; at first every slot has its own, side by side. Layers with a sliding window have a
    `WindowBuffer` each, those with linear attention a `RecurrentBuffer`."""

    def __init__(
        self,
        spec: ModelSpec,
        slots: int,
        max_length: int,
        dtype: torch.dtype,
        device: str = "cpu",
        step_tokens: int | None = None,
    ) -> None:
        """`step_tokens`: new tokens of a sequence at once, at most; None: as many as fit. Layers
        with a window keep the fewer tokens the fewer these are."""
        widths = cache_widths(spec)
        others = {*spec.window_layers, *spec.linear_layers}
        full = [n for n in range(spec.num_layers) if n not in others]
        self._rows = {layer: row for row, layer in enumerate(full)}  # of first and second
        of_slot = blocks_of(max_length)
        self.table: NDArray[np.int32] = np.arange(slots * of_slot, dtype=np.int32)
        self.table = self.table.reshape(slots, of_slot)
        self.device_table = torch.from_numpy(self.table)  # on the CPU the same memory
        if device != "cpu":
            self.device_table = self.device_table.to(device)
        shape = (len(full), slots * of_slot, KV_BLOCK)
        self.first, self.second = (
            torch.zeros((*shape, width), dtype=dtype, device=device) for width in widths
        )
        longest_step = max_length if step_tokens is None else step_tokens
        rows = window_rows(spec.sliding_window, max_length, longest_step)
        self._windows = {
            layer: WindowBuffer(spec.sliding_window, slots, rows, widths, self.first)
            for layer in spec.window_layers
        }
        linear = spec.linear_attention
        self._states: dict[int, RecurrentBuffer] = {}
        if linear is not None:
            self._states = {
                layer: RecurrentBuffer(linear, slots, self.first) for layer in spec.linear_layers
            }
        self._lengths = [0] * slots
        self.slots, self.max_length = slots, max_length

    @property
    def nbytes(self) -> int:
        buffers = [self.first, self.second]
        for each in self._windows.values():
            buffers += [each.first, each.second]
        states = sum(each.nbytes for each in self._states.values())
        return states + sum(int(buffer.nbytes) for buffer in buffers)

    def length(self, slot: int) -> int:
        return self._lengths[slot]

    def least_length(self, slot: int) -> int:
        """The shortest that a sequence can be truncated to; beyond that only to 0: what its next
        token would see has left the windows, or no state is kept that is old enough."""
        return max((each.least_length(slot) for each in self._buffers()), default=0)

    def reaches(self, slot: int, length: int) -> bool:
        """Whether a sequence can be truncated to this: a step that failed always can be undone."""
        windows = all(length >= each.least_length(slot) for each in self._windows.values())
        states = all(each.reaches(slot, length) for each in self._states.values())
        return not length or (windows and states)

    @property
    def blocks_of_slot(self) -> int:
        """Of the longest sequence."""
        return blocks_of(self.max_length)

    def upload_table(self) -> None:
        """The device reads the table as it is now."""
        self.device_table.copy_(torch.from_numpy(self.table))

    def of(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All blocks of a layer that sees everything: [blocks, KV_BLOCK, width] each."""
        row = self._rows[layer]
        return self.first[row], self.second[row]

    def states(self, layer: int) -> RecurrentBuffer:
        return self._states[layer]

    def _buffers(self) -> list[WindowBuffer | RecurrentBuffer]:
        return [*self._windows.values(), *self._states.values()]

    def reserve(
        self, layer: int, slot: int, tokens: int
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        start = self._lengths[slot]
        end = start + tokens
        if end > self.max_length:
            raise ImpossibleSetting(
                f"a sequence of {end} tokens was asked for, but the KV cache holds "
                f"{self.max_length} per sequence: shorten it or allow longer sequences."
            )
        if layer in self._windows:
            return self._windows[layer].reserve(slot, start, tokens)
        blocks = self.table[slot, : blocks_of(end)]
        if (blocks[1:] != blocks[:-1] + 1).any():
            return None
        at = KV_BLOCK * int(blocks[0])
        first, second = (part.flatten(0, 1)[at : at + end] for part in self.of(layer))
        return first, second

    def extend(
        self, layer: int, slot: int, first: torch.Tensor, second: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        both = self.reserve(layer, slot, len(first))
        if both is None:
            return self._extend_scattered(layer, slot, first, second)
        for kept, new in zip(both, (first, second), strict=True):
            kept[len(kept) - len(new) :] = new
        return both

    def _extend_scattered(
        self, layer: int, slot: int, first: torch.Tensor, second: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A copy of what lies in several places."""
        rows = self.rows_of(slot, self._lengths[slot] + len(first))
        parts = [part.flatten(0, 1) for part in self.of(layer)]
        for kept, new in zip(parts, (first, second), strict=True):
            kept[rows[len(rows) - len(new) :]] = new
        return parts[0][rows], parts[1][rows]

    def rows_of(self, slot: int, length: int) -> torch.Tensor:
        """Where a sequence's first `length` tokens lie, among the rows of all blocks. Made on the
        device: a copy from the host would wait for a step that is launched ahead."""
        blocks = self.device_table[slot, : blocks_of(length)].long()
        rows = KV_BLOCK * blocks[:, None] + torch.arange(KV_BLOCK, device=blocks.device)
        return rows.flatten()[:length]

    def advance(self, slot: int, tokens: int) -> None:
        self._lengths[slot] += tokens

    def truncate(self, slot: int, length: int) -> None:
        assert length <= self._lengths[slot], "a cache cannot be truncated to more than it holds"
        assert self.reaches(slot, length), f"{length} tokens: {_GONE}"
        self._lengths[slot] = length
        if not length:
            for each in self._buffers():
                each.clear(slot)

    def copy(self, source: int, slot: int, length: int | None = None) -> None:
        """An empty slot gets what another one holds, or the first `length` tokens of it."""
        assert not self._lengths[slot], "a slot that is in use cannot be copied to"
        length = self._lengths[source] if length is None else length
        assert length <= self._lengths[source], "no more can be copied than is there"
        assert self.reaches(source, length), f"{length} tokens: {_GONE}"
        to, here = self.rows_of(slot, length), self.rows_of(source, length)
        for part in (self.first, self.second):
            rows = part.flatten(1, 2)
            for layer in range(len(rows)):  # one by one: the copy in between stays small
                rows[layer, to] = rows[layer, here]
        for each in self._buffers():
            each.copy(source, slot)
        self._lengths[slot] = length


# The KV cache of one layer with a sliding window: the last tokens of every sequence. A slot keeps
# consecutive tokens in order, so that attention reads a view. When new ones do not fit, what is
# still needed moves to the front: the tokens that the first new one sees, and `REWIND` more, so
# that a sequence can be shortened by as many, or a step repeated, without reading it again.


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

    def clear(self, slot: int) -> None:
        self._starts[slot] = 0

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
