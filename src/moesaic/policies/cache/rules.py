"""The compiled caches behind one number each, so that compiled code can call any of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.cache.base import LEARNED_MIXTURE, LEARNED_SPEED, LFU, LRU, MRS, TWO_SPEED
from moesaic.policies.cache.learned_mixture import observe_learned_mixture
from moesaic.policies.cache.learned_speed import observe_learned_speed
from moesaic.policies.cache.lfu import observe_lfu
from moesaic.policies.cache.lru import observe_lru
from moesaic.policies.cache.mrs import observe_mrs
from moesaic.policies.cache.two_speed import observe_two_speed
from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import Ints


@compiled
def observe(
    rule: int,
    layer: int,
    experts: Ints,
    ranked: Ints,
    scores: NDArray[np.float64],
    values: NDArray[np.float64],
    memory: NDArray[np.float64],
    numbers: NDArray[np.float64],
) -> None:
    """A layer was routed: `experts` are [tokens, used ranks], `ranked` and `scores` [tokens,
    ranks]; a negative expert is no expert."""
    if rule == LRU:
        observe_lru(experts, ranked, values[layer], numbers)
    elif rule == LFU:
        observe_lfu(experts, values[layer])
    elif rule == MRS:
        observe_mrs(ranked, scores, values[layer], numbers)
    elif rule == TWO_SPEED:
        observe_two_speed(layer, ranked, scores, values, memory, numbers)
    elif rule == LEARNED_SPEED:
        observe_learned_speed(layer, experts, ranked, scores, values, memory, numbers)
    elif rule == LEARNED_MIXTURE:
        observe_learned_mixture(layer, experts, ranked, scores, values, memory, numbers)
