"""A cache alone: no machine, no time, only who would have been there.

Every layer has its own slots, empty at first. A step asks for the active experts of a layer all
at once, as a router does: those in a slot hit. Then each missed one takes a free slot, or the
place of the cheapest resident if it is worth more (the ledger's rule, with bypass); Belady's
values make that the most hits any cache could have. Textbook caches insert always: for LRU there
is no difference, since what was just used is worth most; LFU and MRS may refuse a newcomer."""

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
) -> float:
    """The share of active experts that were in a slot when their layer asked for them.

    With `one_by_one` a token asks for its experts one after another, best first, and the cache
    sees each as a routing of its own: a miss may then evict what the same token asks for next.
    That is the classical count for LRU and LFU; it has no meaning for scores or oracles."""
    assert not (one_by_one and cache.needs_future), "an oracle counts whole steps"
    if cache.needs_future:
        assert future is not None, "an oracle cache needs the future"
        future.step = -1
        cache.foresee(future)
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
                    part.experts, cache.values[layer], resident[layer], slots_per_layer, marks
                )
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
    values: NDArray[np.float64],
    resident: NDArray[np.uint8],
    slots: int,
    marks: NDArray[np.uint8],
) -> tuple[int, int]:
    """Count the active experts and the hits among them, then let the misses compete for slots.

    `marks` is scratch of one zero per expert and is left zero again."""
    hits = 0
    wanted = 0
    held = 0
    for expert in chosen.flat:
        if expert >= 0 and marks[expert] == 0:
            marks[expert] = 1
            wanted += 1
            hits += int(resident[expert])
    for other in range(len(resident)):
        held += int(resident[other])
    for expert in chosen.flat:
        if expert < 0 or marks[expert] == 0:
            continue
        marks[expert] = 0
        if resident[expert]:
            continue
        if held < slots:
            held += 1
            resident[expert] = 1
            continue
        cheapest = -1
        for other in range(len(resident)):
            if resident[other] and (cheapest < 0 or values[other] < values[cheapest]):
                cheapest = other
        if cheapest >= 0 and values[cheapest] < values[expert]:
            resident[cheapest] = 0
            resident[expert] = 1
    return hits, wanted
