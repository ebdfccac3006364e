"""The initial placement for ever: what a system with static expert maps does."""

from __future__ import annotations

from moesaic.core.routing import LayerRouting
from moesaic.policies.cache.base import Cache


class Pinned(Cache):
    fixed = True

    def observe(self, routing: LayerRouting) -> None:
        """Nothing to learn: nothing ever moves."""
