"""The classic caches: least recently and least frequently used, Belady's oracle, nothing moves."""

from __future__ import annotations

from moesaic.core.routing import LayerRouting
from moesaic.policies.cache import RANKED, USED
from moesaic.policies.cache.base import Cache
from moesaic.policies.compiled import compiled
from moesaic.policies.future import Future
from moesaic.policies.records import Floats
from moesaic.policies.timelines import Ints

# In `numbers`. The clock starts at 1: 0 is the value of what was never used.
CLOCK, COUNTS_RANKED = 0, 1


@compiled
def observe_lru(
    layer: int, experts: Ints, ranked: Ints, scores: Floats, values: Floats, memory: Floats,
    numbers: Floats,
) -> None:  # fmt: skip
    """Later tokens are more recent; within a token, better ranks are."""
    row, left_out = values[layer], numbers[COUNTS_RANKED] > 0.0
    for token in range(experts.shape[0]):
        if left_out:
            for rank in range(min(experts.shape[1], ranked.shape[1]) - 1, -1, -1):
                expert = ranked[token, rank]
                if expert >= 0:
                    row[expert] = numbers[CLOCK]
                    numbers[CLOCK] += 1.0
        for rank in range(experts.shape[1] - 1, -1, -1):
            expert = experts[token, rank]
            if expert >= 0:
                row[expert] = numbers[CLOCK]
                numbers[CLOCK] += 1.0


class Lru(Cache):
    """An expert is worth the moment of its last use.

    Where a gate lets tokens use fewer experts than top-k, the router has still ranked them all.
    Those that were left out are what the token needs if it runs again, and close to what the next
    one uses: with `counts=ranked` they count as used just before those that were."""

    rule = staticmethod(observe_lru)

    def __init__(self, layers: int, experts: int, top_k: int, counts: str = USED) -> None:
        super().__init__(layers, experts, top_k)
        self.numbers[CLOCK] = 1.0
        self.numbers[COUNTS_RANKED] = float(counts == RANKED)


@compiled
def observe_lfu(
    layer: int, experts: Ints, ranked: Ints, scores: Floats, values: Floats, memory: Floats,
    numbers: Floats,
) -> None:  # fmt: skip
    for expert in experts.flat:
        if expert >= 0:
            values[layer, expert] += 1.0


class Lfu(Cache):
    """An expert is worth the tokens it has served."""

    rule = staticmethod(observe_lfu)


class Belady(Cache):
    """An expert is worth more the sooner it is used again. A bound, not a policy."""

    needs_future = True

    def set_future(self, future: Future) -> None:
        self._future = future
        for layer in range(len(self.values)):  # before a layer's first turn, too
            self.values[layer] = -future.next_use(layer)

    def observe(self, routing: LayerRouting) -> None:
        self.values[routing.layer] = -self._future.next_use(routing.layer)


@compiled
def observe_nothing(
    layer: int, experts: Ints, ranked: Ints, scores: Floats, values: Floats, memory: Floats,
    numbers: Floats,
) -> None:  # fmt: skip
    """Nothing to learn: nothing ever moves."""


class Pinned(Cache):
    """The initial placement for ever: what a system with static expert maps does."""

    rule = staticmethod(observe_nothing)
    fixed = True
