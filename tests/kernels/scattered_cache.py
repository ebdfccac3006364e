"""Sequences laid out as a KV cache of blocks in no order, for kernels that read one."""

from __future__ import annotations

from typing import NamedTuple

import torch

from moesaic.model_info.kv_blocks import KV_BLOCK, blocks_of


class Scattered(NamedTuple):
    """`rows` [slots * blocks of a slot, KV_BLOCK, ...]; `table` [slots, blocks of a slot]."""

    rows: torch.Tensor
    table: torch.Tensor

    @classmethod
    def of(cls, sequences: torch.Tensor) -> Scattered:
        """sequences [slots, tokens, ...]; what no token fills is NaN, which nothing may read."""
        slots, length = sequences.shape[:2]
        blocks, generator = blocks_of(length), torch.Generator().manual_seed(9)
        table = torch.randperm(slots * blocks, generator=generator).view(slots, blocks)
        shape = (slots, blocks * KV_BLOCK, *sequences.shape[2:])
        filled = sequences.new_full(shape, torch.nan)
        filled[:, :length] = sequences
        in_blocks = filled.unflatten(1, (-1, KV_BLOCK)).flatten(0, 1)
        rows = torch.empty_like(in_blocks)
        rows[table.flatten()] = in_blocks
        return cls(rows, table.int())

    def sequences(self, length: int) -> torch.Tensor:
        """What was laid out, and written since."""
        return self.rows[self.table.long()].flatten(1, 2)[:, :length]
