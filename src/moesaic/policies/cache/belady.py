"""Belady's oracle: an expert is worth more the sooner it is used again. A bound, not a policy."""

from __future__ import annotations

from moesaic.core.routing import LayerRouting
from moesaic.policies.cache.base import Cache
from moesaic.policies.future import Future


class Belady(Cache):
    needs_future = True

    def set_future(self, future: Future) -> None:
        self._future = future
        for layer in range(len(self.values)):  # before a layer's first turn, too
            self.values[layer] = -future.next_use(layer)

    def observe(self, routing: LayerRouting) -> None:
        self.values[routing.layer] = -self._future.next_use(routing.layer)
