"""The initial placement for ever: what a system with static expert maps does."""

from __future__ import annotations

from moesaic.policies.cache.base import Cache
from moesaic.policies.compiled import compiled
from moesaic.policies.records import Floats
from moesaic.policies.timelines import Ints


@compiled
def observe_nothing(
    layer: int, experts: Ints, ranked: Ints, scores: Floats, values: Floats, memory: Floats,
    numbers: Floats,
) -> None:  # fmt: skip
    """Nothing to learn: nothing ever moves."""


class Pinned(Cache):
    rule = staticmethod(observe_nothing)
    fixed = True
