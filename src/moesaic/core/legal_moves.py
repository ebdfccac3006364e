"""May a machine make these moves? The part of legality that is about memories and links."""

from __future__ import annotations

from collections.abc import Iterator

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.residency import UNLIMITED
from moesaic.core.routing import ExpertId
from moesaic.core.view import View

Located = tuple[int, int, int]  # placement, layer, expert


def move_violations(plan: LayerPlan, view: View) -> Iterator[str]:
    """Every rule that the moves of a plan break, in words."""
    moves = (*plan.transfers, *plan.background)
    ends = range(len(view.topology.placements))
    strange = [m for m in moves if m.source not in ends or m.destination not in ends]
    for move in strange:
        yield f"{_name(move)} is moved between placements that the machine has not got"
    if strange:
        return
    yield from _ends(moves, view)
    yield from _departures(plan, moves, view)
    for move in plan.transfers:
        if move.layer != plan.layer:
            yield f"a demanded move belongs to layer {move.layer}, not {plan.layer}"
    for move in plan.background:
        if not move.keep:
            yield f"background move of expert {move.expert} would be thrown away"
    yield from _capacity(moves, view)


def _ends(moves: tuple[Move, ...], view: View) -> Iterator[str]:
    """From where it lies to where it does not, over links that exist."""
    placements = view.topology.placements
    coming = {(f.destination, f.layer, f.expert) for f in view.in_flight}
    for move in moves:
        source, destination = placements[move.source].name, placements[move.destination].name
        target = (move.destination, move.layer, move.expert)
        if view.topology.route(move.source, move.destination) is None:
            yield f"{_name(move)} is moved from {source} to {destination}, without a link"
        if view.located[target]:
            yield f"{_name(move)} is moved to {destination} though it is there"
        if not view.located[move.source, move.layer, move.expert]:
            yield f"{_name(move)} is moved from {source} though it is not there"
        if target in coming:
            yield f"{_name(move)} is moved to {destination} twice"
        coming.add(target)


def _departures(plan: LayerPlan, moves: tuple[Move, ...], view: View) -> Iterator[str]:
    """What goes was there, goes once, is not in use and is not the last copy."""
    gone: set[Located] = set()
    everywhere = range(len(view.topology.placements))
    sources = {(move.source, move.layer, move.expert) for move in moves}
    used = _in_use(plan, view)
    for move in moves:
        if move.leaves and not move.keep:
            yield f"{_name(move)} would leave its place and be thrown away"
        for place in _leaving(move):
            placement, expert = place[0], ExpertId(*place[1:])
            where = view.topology.placements[placement].name
            if not view.located[place]:
                yield f"{expert} is evicted from {where} though it is not there"
            if place in gone:
                yield f"{expert} is evicted from {where} twice"
            if place in used:
                yield f"{expert} is evicted from {where} though this layer computes it there"
            if place in sources and place[1:] != (move.layer, move.expert):
                yield f"{expert} is evicted from {where} though it is moved from there"
            kept = place[1:] == (move.layer, move.expert)  # it leaves on arrival elsewhere
            others = (p for p in everywhere if p != placement and (p, *expert) not in gone)
            if not kept and not any(view.located[p][expert] for p in others):
                yield f"{expert} is evicted from {where}, which has its only copy"
            if any(view.memory_slots[m] == UNLIMITED for m in view.topology.memories_of[placement]):
                yield f"{expert} is evicted from {where}, which holds every expert for ever"
            gone.add(place)


def _leaving(move: Move) -> Iterator[Located]:
    if move.victim is not None:
        yield (move.destination, *move.victim)
    if move.leaves:
        yield (move.source, move.layer, move.expert)


def _in_use(plan: LayerPlan, view: View) -> set[Located]:
    """Places that a device of this layer reads and could not do without."""
    topology, used = view.topology, set()
    for device, queue in plan.queues.items():
        reads = topology.reads[topology.device_index[device]]
        for expert in queue:
            there = [p for p in reads if view.located[p, plan.layer, expert]]
            if len(there) == 1:
                used.add((there[0], plan.layer, expert))
    return used


def _capacity(moves: tuple[Move, ...], view: View) -> Iterator[str]:
    """Slots in every memory, in the order of the moves; those that `leaves` frees come too late."""
    topology, units = view.topology, view.topology.units
    slots, occupied = view.memory_slots.tolist(), view.memory_occupied.tolist()
    full: set[int] = set()
    for move in moves:
        taken = (int(move.keep) - int(move.victim is not None)) * topology.units_in(
            move.destination
        )
        for memory in topology.memories_of[move.destination]:
            name = topology.memories[memory].name
            occupied[memory] += taken
            if memory in full:
                continue
            if slots[memory] == 0:
                yield f"there are no slots in {name} to move experts into"
                full.add(memory)
            elif occupied[memory] > slots[memory]:
                needed, there = occupied[memory] / units, slots[memory] / units
                yield f"moving expert {move.expert} needs {needed:g} of {there:g} slots of {name}"
                full.add(memory)


def _name(move: Move) -> str:
    return str(ExpertId(move.layer, move.expert))
