"""The engine's capacity, decided before anything is allocated."""

from __future__ import annotations

from typing import NamedTuple

from moesaic.model_info.kv_blocks import blocks_of


class Capacity(NamedTuple):
    """How many experts the accelerator holds, how many sequences run at once, how long each may
    be, and how many blocks the KV cache has for all of them together; None: as many as they can
    need."""

    slots: int
    sequences: int
    length: int
    blocks: int | None = None

    @property
    def kv_blocks(self) -> int:
        return self.sequences * blocks_of(self.length) if self.blocks is None else self.blocks
