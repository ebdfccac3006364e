"""The engine's capacity, decided before anything is allocated."""

from __future__ import annotations

from typing import NamedTuple

from moesaic.model_info.kv_blocks import blocks_of


class Capacity(NamedTuple):
    """How many experts the accelerator holds, how many sequences run at once, how long each may
    be, how many blocks the KV cache has for all of them together (None: as many as they can need),
    and how many copies of blocks main memory has for a GPU's cache."""

    slots: int
    sequences: int
    length: int
    blocks: int | None = None
    copies: int = 0

    @property
    def kv_blocks(self) -> int:
        return self.sequences * blocks_of(self.length) if self.blocks is None else self.blocks
