"""KV caches whose sequences have blocks in no order, as after many requests."""

from __future__ import annotations

import numpy as np

from moesaic.engine.kv.kv_blocks import KVBlocks
from moesaic.models.attentions.kv_cache import BlockCache


def scatter(cache: BlockCache, seed: int = 5) -> None:
    """Of an empty cache: no block of a sequence is followed by the next one's neighbour."""
    assert not any(cache.length(slot) for slot in range(cache.slots)), "the cache is empty"
    order = np.random.default_rng(seed).permutation(cache.table.size)
    cache.table[:] = order.reshape(cache.table.shape)
    for slot in range(cache.slots):
        cache.changed(slot, 0)
        cache.upload_table(slot, cache.max_length)


def scatter_blocks(kv: KVBlocks, seed: int = 5) -> None:
    """From now on sequences get any free blocks."""
    pool, random = kv.pool, np.random.default_rng(seed)

    def take(after: int | None = None) -> int | None:
        free = np.flatnonzero(pool.holders == 0)
        if not len(free):
            return None
        block = int(random.choice(free))
        pool.holders[block] = 1
        pool.free -= 1
        return block

    pool.take = take  # type: ignore[method-assign]
