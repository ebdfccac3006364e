"""A plan: who computes which expert, in which order, and what moves. A value, nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from moesaic.core.routing import ExpertId


class Transfer(NamedTuple):
    """Bring one expert's weights to GPU memory.

    `victim` is evicted when the transfer starts. `keep=False` stages the expert for this layer
    only: its place is free again once the GPU has computed it."""

    layer: int
    expert: int
    victim: ExpertId | None = None
    keep: bool = True


class LayerPlan(NamedTuple):
    """One layer of one step.

    Every active expert stands in exactly one queue, all its tokens with it; a queue is worked
    off in order. `transfers` are needed by this layer and run in order, before any
    `background` transfer; those use the link only while it is idle, and the ones that have not
    started when the next layer is routed are forgotten."""

    layer: int
    queues: Mapping[str, tuple[int, ...]]  # device -> experts, in order
    transfers: tuple[Transfer, ...] = ()
    background: tuple[Transfer, ...] = ()
    believed_ns: int = 0  # how long the planner thinks the layer takes, for comparison
