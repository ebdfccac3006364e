"""A cache alone: no machine, no time, only hits and misses.

Every layer has its own slots, or all layers compete for one pool; empty at first. A step asks for
the active experts of a layer all at once, as a router does: those in a slot hit. Then each missed
one takes a free slot, or the place of the cheapest resident: if it is worth more than that one
(bypass), or always. With bypass, Belady's values give the most hits any cache could have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from moesaic.core.routing import LayerRouting
from moesaic.policies.cache.base import Cache
from moesaic.policies.compiled import compiled
from moesaic.policies.future import Future
from moesaic.policies.timelines import Ints


class RoutedStep(Protocol):
    def layer(self, layer: int) -> LayerRouting: ...


def replay_hit_rates(
    cache: Cache,
    steps: Iterable[RoutedStep],
    layers: int,
    experts: int,
    slots_per_layer: int,
    future: Future | None = None,
    one_by_one: bool = False,
    global_pool: bool = False,
    admits_always: bool = False,
) -> float:
    """The share of active experts that were in a slot when their layer asked for them.

    With `one_by_one` a token asks for its experts one after another, best first, and the cache
    sees each as a routing of its own: a miss may then evict what the same token asks for next.
    That is the classical count for LRU and LFU; it has no meaning for scores or oracles."""
    assert not (one_by_one and cache.needs_future), "an oracle counts whole steps"
    if cache.needs_future:
        assert future is not None, "an oracle cache needs the future"
        future.step = -1
        cache.set_future(future)
    resident = np.zeros((layers, experts), dtype=np.uint8)
    marks = np.zeros(experts, dtype=np.uint8)
    hits = asked = 0
    for step in steps:
        if future is not None:
            future.step += 1
        for layer in range(layers):
            routing = step.layer(layer)
            for part in _accesses(routing) if one_by_one else (routing,):
                cache.observe(part)
                found, wanted = _serve(
                    part.experts, layer, cache.values, resident, slots_per_layer,
                    global_pool, admits_always, marks,
                )  # fmt: skip
                hits += found
                asked += wanted
    return hits / asked if asked else 0.0


def _accesses(routing: LayerRouting) -> Iterator[LayerRouting]:
    for token in range(routing.num_tokens):
        used = routing.experts.shape[1] if routing.counts is None else int(routing.counts[token])
        for rank in range(used):
            at = (slice(token, token + 1), slice(rank, rank + 1))
            expert, weight = routing.experts[at], routing.weights[at]
            yield LayerRouting(routing.layer, expert, weight, expert, weight, step=routing.step)


@compiled
def _serve(
    chosen: Ints,
    layer: int,
    all_values: NDArray[np.float64],
    all_resident: NDArray[np.uint8],
    slots: int,
    global_pool: bool,
    admits_always: bool,
    marks: NDArray[np.uint8],
) -> tuple[int, int]:
    """Count the active experts and the hits among them, then let the misses compete for slots.

    `marks` is scratch of one zero per expert and is left zero again."""
    layers, experts = all_resident.shape
    values, resident = all_values.ravel(), all_resident.ravel()
    base = layer * experts
    first, last = (0, layers * experts) if global_pool else (base, base + experts)
    slots = slots * layers if global_pool else slots
    hits = 0
    wanted = 0
    held = 0
    for expert in chosen.flat:
        if expert >= 0 and marks[expert] == 0:
            marks[expert] = 1
            wanted += 1
            hits += int(resident[base + expert])
    for other in range(first, last):
        held += int(resident[other])
    for expert in chosen.flat:
        if expert < 0 or marks[expert] == 0:
            continue
        marks[expert] = 0
        if resident[base + expert]:
            continue
        if held < slots:
            held += 1
            resident[base + expert] = 1
            continue
        cheapest = -1
        for other in range(first, last):
            if resident[other] and (cheapest < 0 or values[other] < values[cheapest]):
                cheapest = other
        if cheapest >= 0 and (admits_always or values[cheapest] < values[base + expert]):
            resident[cheapest] = 0
            resident[base + expert] = 1
    return hits, wanted
