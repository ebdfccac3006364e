"""May a machine execute this plan? Used by the tests, and at run time on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import IllegalPlan
from moesaic.core.layer_plan import PARTS, LayerPlan
from moesaic.core.legal_moves import move_violations
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
    """Of a split expert a memory's owner has its own part only, as even as thousandths allow."""
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
