"""KV caches whose sequences have blocks in no order, as after many requests."""

from __future__ import annotations

import numpy as np

from moesaic.models.attentions.kv_cache import BlockCache


def scatter(cache: BlockCache, seed: int = 5) -> None:
    """Of an empty cache: no block of a sequence is followed by the next one's neighbour."""
    assert not any(cache.length(slot) for slot in range(cache.slots)), "the cache is empty"
    order = np.random.default_rng(seed).permutation(cache.table.size)
    cache.table[:] = order.reshape(cache.table.shape)
    cache.upload_table()
