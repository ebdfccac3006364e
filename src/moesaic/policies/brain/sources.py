"""Where a move takes an expert from: compiled rules name main memory, on machines with DIMMs it may
lie whole in one of them instead."""

from __future__ import annotations

from moesaic.core.layer_plan import Move
from moesaic.core.offloading import IN_DRAM, IN_VRAM
from moesaic.core.view import View


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
