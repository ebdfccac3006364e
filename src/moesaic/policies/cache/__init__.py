"""Caches: which experts deserve GPU memory, and which has to go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moesaic.core.registry import Registry

if TYPE_CHECKING:  # names and summaries must cost no numpy: `--help` reads them
    from moesaic.policies.cache.base import Cache

caches: Registry[Cache] = Registry("cache")
_HERE = "moesaic.policies.cache"

caches.register("lru", f"{_HERE}.lru:Lru", "evict the least recently used expert")
caches.register("lfu", f"{_HERE}.lfu:Lfu", "evict the least frequently used expert")
caches.register(
    "mrs",
    f"{_HERE}.mrs:Mrs",
    "HybriMoE: evict the lowest running routing score (equation 3)",
)
caches.register(
    "two-speed",
    f"{_HERE}.two_speed:TwoSpeed",
    "running routing scores at a fast and a slow speed, averaged",
)
caches.register(
    "belady",
    f"{_HERE}.belady:Belady",
    "oracle bound: evict the expert whose next use is furthest away",
)
caches.register(
    "pinned",
    f"{_HERE}.pinned:Pinned",
    "keep the initial placement for ever (kTransformers, llama.cpp)",
)
