"""The initial placement for ever: what a system with static expert maps does."""

from __future__ import annotations

from moesaic.policies.cache.base import NOTHING, Cache


class Pinned(Cache):
    """Nothing to learn: nothing ever moves."""

    rule = NOTHING
    fixed = True
