"""A plan: the device of every expert, in order, and what moves. A plain value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from moesaic.core.offloading import IN_DRAM, IN_VRAM
from moesaic.core.routing import ExpertId

PARTS = 1000  # parts of an expert are counted in thousandths of its intermediate width


class Move(NamedTuple):
    """Bring one expert's weights from one placement to another (indices of the topology, which
    knows the links between them).

    `victim` is evicted from the destination when the move starts. `keep=False` stages the expert
    for this layer only: its place is free again once it is computed. With `leaves` the copy at the
    source is given up on arrival: a relayout."""

    layer: int
    expert: int
    victim: ExpertId | None = None
    keep: bool = True
    source: int = IN_DRAM
    destination: int = IN_VRAM
    leaves: bool = False


class LayerPlan(NamedTuple):
    """One layer of one step.

    Every active expert stands in exactly one queue, all its tokens with it; a queue is worked
    off in order. Or its parts stand in several: then `parts` says how much of its intermediate
    width each of those devices computes, in thousandths, for all its tokens. `transfers` are needed
    by this layer and run in order, before any `background` move; those use links only while they
    are idle, and the ones that have not started when the next layer is routed are dropped."""

    layer: int
    queues: Mapping[str, tuple[int, ...]]  # device -> experts, in order
    transfers: tuple[Move, ...] = ()
    background: tuple[Move, ...] = ()
    believed_ns: int = 0  # the planner's estimate of the layer's time, for comparison
    parts: Mapping[int, Mapping[str, int]] = {}  # expert -> device -> thousandths
