"""The KV cache: keys and values of earlier tokens.

A cache has slots, one per running sequence. Per layer and token it keeps two vectors, whatever
they mean to the attention: keys and values, or the latent and its rotary key. A layer with a
sliding window keeps only the last tokens, one with linear attention a state. Vectors are kept as
they are computed or, in layers that keep every token, in int8: new ones are rounded before they are
used, so that a token says the same however a prompt was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting
from moesaic.model_info.kv_blocks import KV_BLOCK, blocks_of
from moesaic.model_info.kv_dtypes import AS_COMPUTED, INT8
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.sliding_window import window_rows
from moesaic.models.attentions.block_table import BlockTable
from moesaic.models.attentions.checkpoint import Checkpoint
from moesaic.models.attentions.kept_vectors import KeptVectors, LayerVectors
from moesaic.models.attentions.recurrent_buffer import RecurrentBuffer
from moesaic.models.attentions.window_buffer import WindowBuffer

_STORED = {"bf16": torch.bfloat16, INT8: torch.int8}
_GONE = "what the next one sees has left the sliding window, or no state is as old"


class KVCache(Protocol):
    def length(self, slot: int) -> int:
        """Tokens remembered; the next one's position."""

    def reserve(
        self, layer: int, slot: int, tokens: int
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """A layer's vectors of all tokens so far, or of those that the new ones see, and then of
        `tokens` new ones, for the caller to write. The length stays, so that every layer of a step
        writes at the same place. None where they do not lie side by side, or are not kept as they
        are computed: `extend` copies them."""

    def extend(
        self, layer: int, slot: int, first: torch.Tensor, second: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, with the new tokens' vectors [new tokens, width] written, wherever they lie."""

    @property
    def table(self) -> NDArray[np.int32]:
        """Which blocks each sequence has: [slots, blocks of the longest sequence]."""

    def check_room(self, slot: int, tokens: int) -> None:
        """Refuses more new tokens than a sequence may have."""

    def rows(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All blocks of a layer that sees everything, one after the other: [rows, width] each."""

    def scales(self, layer: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Of codes, what they are multiplied by: [rows, heads] each; None: there are no codes."""

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


def scaled_parts(spec: ModelSpec) -> int:
    """How many parts of a vector have a scale each, where the cache keeps codes."""
    return 1 if spec.latent_attention is not None else spec.num_kv_heads


class BlockCache:
    """`first` and `second` [layers, blocks, KV_BLOCK, width] hold the vectors of every token that a
    layer without a window has seen; they stay where they are, so that captured kernels find them.
    In int8 they are codes, but for the rotary key of latent attention (see `kv_codes.py`).
    `table` says which blocks a sequence has; at first every slot has its own, side by side. Layers
    with a sliding window have a `WindowBuffer` each, those with linear attention a
    `RecurrentBuffer`."""

    def __init__(
        self,
        spec: ModelSpec,
        slots: int,
        max_length: int,
        dtype: torch.dtype,
        device: str = "cpu",
        step_tokens: int | None = None,
        blocks: int | None = None,
        kv_dtype: str = AS_COMPUTED,
    ) -> None:
        """`step_tokens`: new tokens of a sequence at once, at most; None: as many as fit. Layers
        with a window keep the fewer tokens the fewer these are. `blocks`: of all sequences
        together; None: as many as they can need. `dtype` is what the network is computed in,
        `kv_dtype` what blocks have (see `kv_dtypes.py`)."""
        widths = cache_widths(spec)
        others = {*spec.window_layers, *spec.linear_layers}
        full = [n for n in range(spec.num_layers) if n not in others]
        self._rows = {layer: row for row, layer in enumerate(full)}  # of first and second
        of_slot = blocks_of(max_length)
        self.blocks = slots * of_slot if blocks is None else blocks
        self._table = BlockTable(slots, of_slot, self.blocks, device)
        shape = (len(full), self.blocks, KV_BLOCK)
        self._dtype, stored = dtype, _STORED.get(kv_dtype, dtype)
        turning = kv_dtype == INT8 and spec.latent_attention is not None  # second: rotary keys
        self._kept = tuple(
            KeptVectors(shape, width, kept, scaled_parts(spec), device)
            for width, kept in zip(widths, (stored, dtype if turning else stored), strict=True)
        )
        like = torch.empty(0, dtype=dtype, device=device)
        longest_step = max_length if step_tokens is None else step_tokens
        rows = window_rows(spec.sliding_window, max_length, longest_step)
        self._windows = {
            layer: WindowBuffer(spec.sliding_window, slots, rows, widths, like)
            for layer in spec.window_layers
        }
        linear = spec.linear_attention
        self._states: dict[int, RecurrentBuffer] = {}
        if linear is not None:
            self._states = {
                layer: RecurrentBuffer(linear, slots, like) for layer in spec.linear_layers
            }
        self._lengths = [0] * slots
        self.slots, self.max_length, self.kv_dtype = slots, max_length, kv_dtype

    @property
    def first(self) -> torch.Tensor:
        return self._kept[0].values

    @property
    def second(self) -> torch.Tensor:
        return self._kept[1].values

    @property
    def parts(self) -> list[torch.Tensor]:
        """All that blocks hold: [layers, blocks, KV_BLOCK, any width] each."""
        return [part for kept in self._kept for part in kept.parts]

    @property
    def has_codes(self) -> bool:
        return self._kept[0].scales is not None

    @property
    def nbytes(self) -> int:
        buffers = self.parts
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
        return not length or all(each.reaches(slot, length) for each in self._buffers())

    @property
    def blocks_of_slot(self) -> int:
        """Of the longest sequence."""
        return blocks_of(self.max_length)

    @property
    def table(self) -> NDArray[np.int32]:
        """[slots, blocks of the longest sequence]; `changed` when a row is."""
        return self._table.host

    @property
    def device_table(self) -> torch.Tensor:
        """What kernels read: as far as `upload_table` and steps have brought it."""
        return self._table.device

    def changed(self, slot: int, first: int) -> None:
        """Row `slot` of the table is another one from this block on."""
        self._table.changed(slot, first)

    def upload_table(self, slot: int, length: int) -> None:
        """Kernels read the table of a sequence up to this length as it is now."""
        self._table.upload(slot, blocks_of(length))

    def blocks_at(self, slots: Sequence[int], positions: Sequence[int]) -> list[int]:
        """Where tokens at these positions lie."""
        found = self.table[slots, np.asarray(positions) // KV_BLOCK]
        return [int(block) for block in found]

    def blocks_placed(self, slot: int, length: int) -> None:
        """A step has brought the table of kernels up to this length."""
        self._table.placed(slot, blocks_of(length))

    def of(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All blocks of a layer that sees everything: [blocks, KV_BLOCK, width] each."""
        row = self._rows[layer]
        return self.first[row], self.second[row]

    def rows(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = self.of(layer)
        return first.flatten(0, 1), second.flatten(0, 1)

    def kept(self, layer: int) -> tuple[LayerVectors, LayerVectors]:
        """The same with scales, where there are codes."""
        first, second = (kept.of(self._rows[layer]) for kept in self._kept)
        return first, second

    def scales(self, layer: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        first, second = (part.scales for part in self.kept(layer))
        if first is None or second is None:
            return None
        return first.flatten(0, 1), second.flatten(0, 1)

    def states(self, layer: int) -> RecurrentBuffer:
        return self._states[layer]

    def check_room(self, slot: int, tokens: int) -> None:
        """Refuses more new tokens than a sequence may have."""
        end = self._lengths[slot] + tokens
        if end > self.max_length:
            raise ImpossibleSetting(
                f"a sequence of {end} tokens was asked for, but the KV cache holds "
                f"{self.max_length} per sequence: shorten it or allow longer sequences."
            )

    def _buffers(self) -> list[WindowBuffer | RecurrentBuffer]:
        return [*self._windows.values(), *self._states.values()]

    def reserve(
        self, layer: int, slot: int, tokens: int
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        self.check_room(slot, tokens)
        start = self._lengths[slot]
        end = start + tokens
        if layer in self._windows:
            return self._windows[layer].reserve(slot, start, tokens)
        if self.first.dtype != self._dtype:
            return None
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
            return self._extend_copied(layer, slot, first, second)
        for kept, new in zip(both, (first, second), strict=True):
            kept[len(kept) - len(new) :] = new
        return both

    def _extend_copied(
        self, layer: int, slot: int, first: torch.Tensor, second: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A copy of what lies in several places, or is kept in another precision."""
        rows, row = self.rows_of(slot, self._lengths[slot] + len(first)), self._rows[layer]
        for kept, new in zip(self._kept, (first, second), strict=True):
            kept.write(row, rows[len(rows) - len(new) :], new)
        both = [kept.read(row, rows, self._dtype) for kept in self._kept]
        return both[0], both[1]

    def rows_of(self, slot: int, length: int) -> torch.Tensor:
        """Where a sequence's first `length` tokens lie, among the rows of all blocks. Made on the
        device: a copy from the host would wait for a step that is launched ahead."""
        self.upload_table(slot, length)
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
        for part in self.parts:
            rows = part.flatten(1, 2)
            for layer in range(len(rows)):  # one by one: the copy in between stays small
                rows[layer, to] = rows[layer, here]
        for each in self._buffers():
            each.copy(source, slot)
        self._lengths[slot] = length

    def copy_block(self, source: int, to: int, rows: int) -> None:
        """The first rows of a block, in all layers that see everything."""
        for part in self.parts:
            part[:, to, :rows] = part[:, source, :rows]

    @property
    def has_checkpoints(self) -> bool:
        """Whether some layers keep what blocks do not have."""
        return bool(self._windows or self._states)

    @property
    def has_states(self) -> bool:
        """Whether what they keep can only be saved between two steps."""
        return bool(self._states)

    def save(self, slot: int, length: int) -> Checkpoint:
        """What layers with a window or a state hold after so many tokens, which can be reached."""
        windows = {layer: each.save(slot, length) for layer, each in self._windows.items()}
        states = {layer: each.save(slot, length) for layer, each in self._states.items()}
        return Checkpoint(length, windows, states)

    def begin(self, slot: int, length: int, checkpoint: Checkpoint | None = None) -> None:
        """An empty slot, whose row of the table has blocks of so many tokens, goes on behind
        them."""
        assert not self._lengths[slot], "the slot is empty"
        assert checkpoint is None or checkpoint.length == length, "a checkpoint of this length"
        assert checkpoint is not None or not self.has_checkpoints or not length, "one is needed"
        if checkpoint is not None:
            for layer, window in checkpoint.windows.items():
                self._windows[layer].restore(slot, length, window)
            for layer, state in checkpoint.states.items():
                self._states[layer].restore(slot, length, state)
        self._lengths[slot] = length
