"""A plan out of the brain's records, as the values that bodies in Python take.

A layer waits for this, so named tuples are made without their constructors, which take longer than
everything else here."""

from __future__ import annotations

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.offloading import CPU, GPU, IN_DRAM, IN_VRAM
from moesaic.core.routing import ExpertId
from moesaic.policies.records import MOVE_WORDS, PLAN_HEADER

_make = tuple.__new__
_NO_PARTS = LayerPlan(0, {}).parts


def read_plan(layer: int, words: list[int]) -> LayerPlan:
    """The words of `decision.plan`."""
    on_gpu, on_cpu, moved, believed_ns = words[:PLAN_HEADER]
    cpu_at = PLAN_HEADER + on_gpu
    moves_at = cpu_at + on_cpu
    queues = {GPU: tuple(words[PLAN_HEADER:cpu_at]), CPU: tuple(words[cpu_at:moves_at])}
    transfers = read_moves(words[moves_at:], moved) if moved else ()
    return _make(LayerPlan, (layer, queues, transfers, (), believed_ns, _NO_PARTS))


def read_moves(words: list[int], count: int) -> tuple[Move, ...]:
    """So many moves of `MOVE_WORDS` each."""
    found = []
    for i in range(0, count * MOVE_WORDS, MOVE_WORDS):
        layer, expert, victim_layer, victim, keep = words[i : i + MOVE_WORDS]
        evicted = _make(ExpertId, (victim_layer, victim)) if victim_layer >= 0 else None
        found.append(_make(Move, (layer, expert, evicted, keep == 1, IN_DRAM, IN_VRAM, False)))
    return tuple(found)
