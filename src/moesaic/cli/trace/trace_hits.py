"""What caches of several sizes would hit on a trace: a token at a time, without a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from moesaic.core.routing import UNUSED, LayerRouting
from moesaic.policies.cache import caches
from moesaic.policies.future import Future
from moesaic.policies.hit_rate_replay import replay_hit_rates
from moesaic.workloads.stats.sample import Sample, spread

CACHES = ("lru", "mrs", "belady")
CAPACITIES = (12.5, 25.0, 50.0, 75.0)  # per cent of a layer's experts
MAX_TOKENS = 4096  # replayed: enough for two digits, and seconds rather than minutes
PARTS = len(CACHES) * len(CAPACITIES)

HitRates = dict[str, float]


@dataclass(frozen=True, slots=True)
class _Token:
    """Only the scores of the chosen experts are used: some traces have no others, and MRS
    must see the same of all."""

    sample: Sample
    row: int

    def layer(self, layer: int) -> LayerRouting:
        at = slice(self.row, self.row + 1)
        experts = self.sample.chosen[at, layer].astype(np.int64)
        if self.sample.weights is None:
            weights = np.full(experts.shape, 1 / self.sample.top_k, np.float32)
        else:
            weights = self.sample.weights[at, layer]
        counts = None if self.sample.counts is None else self.sample.counts[at]
        ranked = self.sample.ranked[at, layer, : self.sample.top_k].astype(np.int64)
        return LayerRouting(layer, experts, weights, ranked, weights, (), counts)


def hit_rates(sample: Sample, advance: Callable[[], object] = lambda: None) -> HitRates:
    """`lru_12.5` and so on; every layer has its own slots, empty at first and kept between
    documents. Calls `advance` `PARTS` times."""
    some = spread(sample, MAX_TOKENS)
    layers, experts = some.num_layers, some.num_experts
    tokens = [_Token(some, row) for row in range(len(some.ranked))]
    loads = np.zeros((len(tokens), layers, experts), np.uint32)
    chosen = some.chosen.astype(np.int64)
    token, layer, _ = used = np.nonzero(chosen != UNUSED)
    loads[token, layer, chosen[used]] = 1
    future = Future(loads)
    found: HitRates = {}
    for name in CACHES:
        for capacity in CAPACITIES:
            cache = caches.create(name, layers, experts, some.top_k)
            slots = int(capacity / 100 * experts)
            known = future if cache.needs_future else None
            found[f"{name}_{capacity:g}"] = replay_hit_rates(
                cache, tokens, layers, experts, slots, known
            )
            advance()
    return found
