"""What caches would have hit on the routing of the latest steps: LRU, and Belady's oracle, which no
cache beats.

Every layer has its own slots, as many as the accelerator has for all, and they are empty at first:
the first half of the steps fills them and is not counted. The count is that of
`policies/hit_rate_replay.py`, all layers of a step at once instead of compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from moesaic.engine.insight.facts import HitFacts
from moesaic.engine.insight.step_log import RoutedStep

WHAT_IF_RATIO = 0.25  # of a layer's experts, where there is no accelerator
_FEWEST = 4  # steps
_NEVER, _WORTHLESS = 1 << 30, -(1 << 62)

Values = NDArray[np.int64]  # of experts, [layers, experts], no two of a layer alike
Chosen = NDArray[np.bool_]


def hit_facts(window: Sequence[RoutedStep], slots: int) -> HitFacts | None:
    """`slots` of the accelerator for all layers; 0: there is none, and `WHAT_IF_RATIO` says what
    one would hold. None: too few steps."""
    if len(window) < _FEWEST:
        return None
    layers, experts = window[0].order.shape
    held = slots or int(WHAT_IF_RATIO * experts) * layers
    orders = [step.order for step in window]
    first = len(orders) // 2
    counted = list(window)[first:]
    wanted = sum(step.active for step in counted)
    actual = sum(step.hits for step in counted) / wanted if slots and wanted else None
    lru, belady = (
        replayed(orders, values, held, first) for values in (_last_uses(orders), _next_uses(orders))
    )
    return HitFacts(len(counted), actual, lru, belady, held / (layers * experts))


def replayed(
    orders: Sequence[NDArray[np.int32]], values: Callable[[int], Values], slots: int, first: int
) -> float:
    """The share of active experts that were held, from step `first` on. `values(step)` says what
    keeping each expert is worth after this step."""
    layers, experts = orders[0].shape
    room = np.array([slots // layers + (at < slots % layers) for at in range(layers)])
    held: Chosen = np.zeros((layers, experts), dtype=np.bool_)
    hits = wanted = 0
    for step, order in enumerate(orders):
        active = order >= 0
        if step >= first:
            hits += int((held & active).sum())
            wanted += int(active.sum())
        may_stay = held | active
        held = _best(np.where(may_stay, values(step), _WORTHLESS), room) & may_stay
    return hits / wanted if wanted else 0.0


def _best(values: Values, room: NDArray[np.int64]) -> Chosen:
    """The most valuable ones of every layer, as many as it has room for."""
    experts = values.shape[1]
    least = int(room.min())
    ends = [max(min(experts - least - more, experts - 1), 0) for more in (0, 1)]
    parts = np.partition(values, sorted(set(ends)), axis=1)
    edges = np.where(room > least, parts[:, ends[1]], parts[:, ends[0]])[:, None]
    kept: Chosen = (values >= edges) & (room > 0)[:, None]
    return kept


def _last_uses(orders: Sequence[NDArray[np.int32]]) -> Callable[[int], Values]:
    layers, experts = orders[0].shape
    numbers = np.arange(experts)
    stamps: Values = np.zeros((layers, experts), dtype=np.int64) + numbers
    begun = experts

    def values(step: int) -> Values:
        nonlocal begun
        order = orders[step].astype(np.int64)
        stamps[:] = np.where(order >= 0, begun + order * experts + numbers, stamps)
        begun = int(stamps.max()) + 1
        return stamps

    return values


def _next_uses(orders: Sequence[NDArray[np.int32]]) -> Callable[[int], Values]:
    layers, experts = orders[0].shape
    numbers = np.arange(experts)
    uses = np.full((len(orders) + 1, layers, experts), _NEVER, dtype=np.int64)
    for step in range(len(orders) - 1, -1, -1):
        uses[step] = np.where(orders[step] >= 0, step, uses[step + 1])
    return lambda step: -uses[step + 1] * experts - numbers
