"""A plan out of the brain's records, as the values that bodies in Python take.

A layer waits for this, so named tuples are made without their constructors, which take longer than
everything else here."""

from __future__ import annotations

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.offloading import CPU, GPU, IN_DRAM, IN_VRAM
from moesaic.core.routing import ExpertId
from moesaic.core.view import View
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


# Where a move takes an expert from: compiled rules name main memory, on machines with DIMMs it
# may lie whole in one of them instead.


def with_sources(moves: tuple[Move, ...], view: View) -> tuple[Move, ...]:
    """The same moves, each from a placement that holds the expert."""
    placements = len(view.topology.placements)
    if not moves or placements <= IN_DRAM + 1:
        return moves
    return tuple(_found(move, view, placements) for move in moves)


def _found(move: Move, view: View, placements: int) -> Move:
    located = view.located[:, move.layer, move.expert]
    if located[move.source]:
        return move
    elsewhere = (p for p in range(placements) if p != IN_VRAM and located[p])
    return move._replace(source=next(elsewhere, move.source))
