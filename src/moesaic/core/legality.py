"""May a machine execute this plan? Used by the tests, and at run time on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import IllegalPlan
from moesaic.core.layer_plan import PARTS, LayerPlan, Move
from moesaic.core.residency import UNLIMITED
from moesaic.core.routing import ExpertId
from moesaic.core.view import View


def violations(plan: LayerPlan, loads: NDArray[np.int64], view: View) -> Iterator[str]:
    """Every rule the plan breaks, in words; nothing for a legal plan.

    `loads` are the tokens per expert of the plan's layer."""
    unknown = [device for device in plan.queues if device not in view.topology.device_index]
    for device in unknown:
        yield f"there is no device {device!r}"
    yield from _service(plan, loads)
    yield from _parts(plan)
    if unknown:
        return
    yield from _supply(plan, view)
    yield from move_violations(plan, view)


def check(plan: LayerPlan, loads: NDArray[np.int64], view: View) -> None:
    """Raise `IllegalPlan` with every violation, or return."""
    broken = list(violations(plan, loads, view))
    if broken:
        raise IllegalPlan(f"illegal plan for layer {plan.layer}: " + "; ".join(broken))


def _service(plan: LayerPlan, loads: NDArray[np.int64]) -> Iterator[str]:
    """Every routed token is served, once."""
    served = Counter(expert for queue in plan.queues.values() for expert in queue)
    active = {int(e) for e in np.flatnonzero(loads)}
    for expert in sorted(active - served.keys()):
        yield f"expert {expert} has {loads[expert]} tokens and no device"
    for expert in sorted(served.keys() - active):
        yield f"expert {expert} is computed without tokens"
    for expert, times in served.items():
        if times > 1 and expert not in plan.parts:
            yield f"expert {expert} is computed {times} times"


def _parts(plan: LayerPlan) -> Iterator[str]:
    """Parts make a whole, and each stands in its device's queue."""
    for expert, parts in plan.parts.items():
        if sum(parts.values()) != PARTS or min(parts.values(), default=0) < 1:
            yield f"the parts of expert {expert} are {dict(parts)}, not {PARTS} in all"
        queued = Counter(d for d, queue in plan.queues.items() for e in queue if e == expert)
        if queued != Counter(dict.fromkeys(parts, 1)):
            yield f"expert {expert} has parts for {sorted(parts)}, but is queued for {[*queued]}"


def _supply(plan: LayerPlan, view: View) -> Iterator[str]:
    """A device computes what it can read, or what is on its way to where it can; what the layer
    demands is computed from there, in the order in which it comes."""
    topology, layer = view.topology, plan.layer
    located = view.located[:, layer].tolist()
    coming = {(f.expert, f.destination) for f in view.in_flight if f.layer == layer}
    demanded = {(move.expert, move.destination) for move in plan.transfers}
    awaited: set[int] = set()
    for device, queue in plan.queues.items():
        reads = topology.reads[topology.device_index[device]]
        absent = {e for e in queue if not any(located[p][e] for p in reads)}
        for expert in sorted(absent):
            if not any((expert, p) in coming or (expert, p) in demanded for p in reads):
                yield (
                    f"the {device} computes expert {expert}, which is not where it could read it "
                    "and not on its way there"
                )
        yield from _own_parts(plan, view, device, located)
        moved = [m.expert for m in plan.transfers if m.destination in reads and m.expert in absent]
        awaited.update(moved)
        if [e for e in queue if e in set(moved)] != moved:
            yield f"the {device} must compute demanded experts in the order of their moves"
    for move in plan.transfers:
        if move.expert not in awaited:
            yield f"expert {move.expert} is demanded, but not computed where it is moved to"


def _own_parts(plan: LayerPlan, view: View, device: str, located: list[list[int]]) -> Iterator[str]:
    """Check that a memory's owner has its own part only of a split expert, as even as thousandths
    allow."""
    topology = view.topology
    at = topology.device_index[device]
    split = {p: topology.share_of(at, p)[1] for p in topology.reads[at]}
    for expert in plan.queues[device]:
        there = [split[p] for p in split if located[p][expert]]
        if not there or min(there) == 1:
            continue
        part = plan.parts.get(expert, {}).get(device, PARTS)
        if not any(abs(part * of - PARTS) < of for of in there):
            yield f"the {device} has one of {there[0]} parts of expert {expert}, not {part / PARTS}"


# May a machine make these moves? The part of legality that is about memories and links.

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
    """Check that moves go from where an expert lies to where it does not, over links that exist."""
    placements = view.topology.placements
    coming = {(f.destination, f.layer, f.expert) for f in view.in_flight}
    for move in moves:
        source, destination = placements[move.source].name, placements[move.destination].name
        target = (move.destination, move.layer, move.expert)
        if view.topology.route(move.source, move.destination) is None:
            yield f"{_name(move)} is moved from {source} to {destination}, without a link"
        if view.located[target]:
            yield f"{_name(move)} is moved to {destination}, where it already is"
        if not view.located[move.source, move.layer, move.expert]:
            yield f"{_name(move)} is moved from {source}, where it is not"
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
                yield f"{expert} is evicted from {where}, where it is not"
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
