"""Figure 9: hit rates of MRS and LRU alone, without a machine, and Belady's bound beside them.

As the paper describes them: one pool for all layers, every miss inserted. Beside them, under names
of their own, the same policies with slots per layer and bypass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, product

import numpy as np

from moesaic.model_info.model_zoo import load_model
from moesaic.policies.cache import caches
from moesaic.policies.future import Future
from moesaic.policies.hit_rate_replay import replay_hit_rates
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.systems import PAPER_MRS
from moesaic.reproductions.hybrimoe.paper import HIT_RATE_CAPACITIES, HIT_RATES, MODELS
from moesaic.reproductions.hybrimoe.runs import again, routing
from moesaic.reproductions.row import Row
from moesaic.workloads.steps import decode_steps

TOKENS = 1024
# the figure's name of a cache -> the policy
CACHES = {
    "lru": "lru:pool=global,admission=always",
    "mrs": PAPER_MRS,
    "belady": "belady:pool=global",
    "lru-per-layer": "lru",
    "mrs-per-layer": "mrs",
    "belady-per-layer": "belady",
}


@dataclass(frozen=True, slots=True)
class HitRate:
    model: str
    capacity: float
    cache: str
    trace: str | None

    @property
    def id(self) -> str:
        return f"fig9/{self.model}/{100 * self.capacity:g}%/{self.cache}"


def wanted(trace_of: Callable[[str], str | None]) -> Iterator[HitRate]:
    for model, capacity, cache in product(MODELS, HIT_RATE_CAPACITIES, CACHES):
        slots = capacity * load_model(model).num_experts
        if slots == int(slots):
            yield HitRate(model, capacity, cache, trace_of(model))


def execute(item: HitRate) -> Row:
    spec = load_model(item.model)
    steps = list(islice(decode_steps(routing(item.model, "decode", item.trace), 1), TOKENS))
    layers, experts = spec.num_moe_layers, spec.num_experts
    policies = PolicySet.of(cache=CACHES[item.cache], prefetch="none")
    cache = policies.cache.create(caches, layers, experts, spec.top_k)
    future = None
    if cache.needs_future:
        loads = [[s.layer(layer).loads(experts) for layer in range(layers)] for s in steps]
        future = Future(np.asarray(loads, dtype=np.uint32))
    slots = round(item.capacity * experts)
    ours = replay_hit_rates(
        cache, steps, layers, experts, slots, future,
        global_pool=not policies.per_layer, admits_always=policies.admits_always,
    )  # fmt: skip
    pool = "slots per layer" if policies.per_layer else "slots per layer, in one pool"
    where = "real" if item.trace is not None else "synthetic"
    return Row(
        item.id,
        f"hit rate of {item.cache}, {MODELS[item.model]}, {100 * item.capacity:g}% cached",
        HIT_RATES.get((item.model, item.capacity), {}).get(item.cache),
        ours,
        "share of active experts",
        f"{len(steps)} tokens of {where} routing, {slots} {pool}, "
        f"{policies.cache}, cache starts empty",
        again(item.id, [item.trace]),
    )
