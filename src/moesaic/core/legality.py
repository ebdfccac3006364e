"""May a machine execute this plan? Used by the tests, and at run time on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import IllegalPlan
from moesaic.core.layer_plan import LayerPlan, Transfer
from moesaic.core.routing import ExpertId
from moesaic.core.view import GPU, View


def violations(plan: LayerPlan, loads: NDArray[np.int64], view: View) -> Iterator[str]:
    """Every rule the plan breaks, in words; nothing for a legal plan.

    `loads` are the tokens per expert of the plan's layer."""
    for device in plan.queues:
        if device not in view.devices:
            yield f"there is no device {device!r}"
    yield from _service(plan, loads)
    yield from _gpu_supply(plan, view)
    yield from _movement(plan, view)
    yield from _capacity(plan, view)


def check(plan: LayerPlan, loads: NDArray[np.int64], view: View) -> None:
    """Raise `IllegalPlan` with every violation, or return."""
    broken = list(violations(plan, loads, view))
    if broken:
        raise IllegalPlan(f"illegal plan for layer {plan.layer}: " + "; ".join(broken))


def _service(plan: LayerPlan, loads: NDArray[np.int64]) -> Iterator[str]:
    served = Counter(expert for queue in plan.queues.values() for expert in queue)
    active = {int(e) for e in np.flatnonzero(loads)}
    for expert in sorted(active - served.keys()):
        yield f"expert {expert} has {loads[expert]} tokens and no device"
    for expert in sorted(served.keys() - active):
        yield f"expert {expert} is computed without tokens"
    for expert, times in served.items():
        if times > 1:
            yield f"expert {expert} is computed {times} times"


def _gpu_supply(plan: LayerPlan, view: View) -> Iterator[str]:
    queue = plan.queues.get(GPU, ())
    coming = {f.expert for f in view.in_flight if f.layer == plan.layer}
    demanded = [t.expert for t in plan.transfers]
    for expert in queue:
        here = view.resident[plan.layer, expert] or expert in coming or expert in demanded
        if not here:
            yield f"the GPU computes expert {expert}, which is not there and not on its way"
    if [e for e in queue if e in set(demanded)] != demanded:
        yield "the GPU must compute every demanded expert, in the order of the transfers"


def _movement(plan: LayerPlan, view: View) -> Iterator[str]:
    flying = {ExpertId(f.layer, f.expert) for f in view.in_flight}
    moved: set[ExpertId] = set()
    evicted: set[ExpertId] = set()
    on_gpu = {ExpertId(plan.layer, e) for e in plan.queues.get(GPU, ())}
    for transfer in (*plan.transfers, *plan.background):
        target = ExpertId(transfer.layer, transfer.expert)
        if view.resident[target]:
            yield f"{target} is moved though it is resident"
        if target in flying or target in moved:
            yield f"{target} is moved twice"
        moved.add(target)
        if transfer.victim is None:
            continue
        victim = ExpertId(*transfer.victim)
        if not view.resident[victim]:
            yield f"{victim} is evicted though it is not resident"
        if victim in evicted:
            yield f"{victim} is evicted twice"
        if victim in on_gpu:
            yield f"{victim} is evicted though this layer computes it on the GPU"
        evicted.add(victim)
    for transfer in plan.transfers:
        if transfer.layer != plan.layer:
            yield f"a demanded transfer belongs to layer {transfer.layer}, not {plan.layer}"
    for transfer in plan.background:
        if not transfer.keep:
            yield f"background transfer of expert {transfer.expert} would be thrown away"


def _capacity(plan: LayerPlan, view: View) -> Iterator[str]:
    moves = (*plan.transfers, *plan.background)
    if moves and view.slots == 0:
        yield "there are no GPU slots to move experts into"
    occupied = view.occupied
    for transfer in moves:
        occupied += _slots_taken(transfer)
        if occupied > view.slots:
            yield f"moving expert {transfer.expert} needs {occupied} of {view.slots} slots"
            return


def _slots_taken(transfer: Transfer) -> int:
    return int(transfer.keep) - int(transfer.victim is not None)
