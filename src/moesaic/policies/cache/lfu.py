"""Least frequently used: an expert is worth the tokens it has served."""

from __future__ import annotations

from moesaic.core.routing import LayerRouting
from moesaic.policies.cache.base import Cache


class Lfu(Cache):
    def observe(self, routing: LayerRouting) -> None:
        row = self.values[routing.layer]
        row += routing.loads(len(row))
