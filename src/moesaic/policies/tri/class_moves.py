"""Which experts to move in the window, by TriMoE's own rule (section 4.3, online part).

Experts are hot, warm or cold by predicted load. A hot one that is not in GPU memory is prefetched;
one whose layout does not suit its class (warm: striped, cold: in one DIMM) is converted; where the
busiest DIMM's cold experts are predicted more load than the mean by `skew`, one of them goes to the
idlest. The paper ranks tasks "by their predicted benefit" and defines neither that nor the classes.
Here a benefit is in tokens: what lies on the wrong side of a class's limit, or leaves the busiest
DIMM. Hot are as many experts as GPU memory holds, warm as many as the first layout has striped."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moesaic.policies.compiled import compiled
from moesaic.policies.tri.costs import Floats, TriCosts
from moesaic.policies.tri.layer import FIRST_DIMM, Bools, Ints, Layer
from moesaic.policies.tri.migrate import (
    IN_HBM,
    PCIE_LANE,
    PREFETCH,
    REBALANCE,
    RELAYOUT,
    STRIPED,
    Lanes,
    account,
    coldest_resident,
    has_time,
    idlest,
    occupy,
    place,
)

MARGIN, SKEW = 0.0, 1.5  # the paper names no margin, and no number for "if skew is detected"


class Classes(NamedTuple):
    """Experts of a layer per class; the rest are cold. A load has to pass a class's limit by
    `margin` of it before the expert is moved."""

    hot: int
    warm: int
    margin: float
    skew: float  # of the busiest DIMM over the mean


@compiled
def limit_behind(ordered: Floats, count: int) -> float:
    """Half-way between the `count`-th of falling loads and the next."""
    if count <= 0:
        return np.inf
    if count >= len(ordered):
        return -1.0
    return float((ordered[count - 1] + ordered[count]) / 2)


@compiled
def cold_loads(layer: Layer, predicted: Floats, limit: float, dimms: int) -> Floats:
    """[resources up to the last DIMM]: predicted tokens of cold experts in each DIMM."""
    loads = np.zeros(FIRST_DIMM + dimms)
    for i in range(len(predicted)):
        if _is_localized(layer, i) and predicted[i] <= limit:
            loads[FIRST_DIMM + layer.dimm[i]] += predicted[i]
    return loads


@compiled
def _is_localized(layer: Layer, i: int) -> bool:
    """Whether it lies in one DIMM only; split experts and striped copies stay as they are."""
    single = layer.dimm[i] >= 0 and layer.span[i] == 1
    return bool(single and not layer.striped[i] and not layer.resident[i])


@compiled
def _is_striped(layer: Layer, i: int) -> bool:
    return bool(layer.striped[i] and layer.dimm[i] < 0 and not layer.resident[i])


@compiled
def prefetch_task(
    costs: TriCosts, layer: Layer, predicted: Floats, lanes: Lanes, moved: Bools, rule: Classes,
    limit: float, task: Ints,
) -> bool:  # fmt: skip
    """The hot expert outside GPU memory with the largest load, for the coldest one in it."""
    victim = coldest_resident(layer, predicted, moved)
    if victim < 0 or not has_time(lanes, PCIE_LANE, costs.pcie_ns):
        return False
    found, most = -1, max(limit, predicted[victim] * (1.0 + rule.margin))
    for i in range(len(predicted)):
        if not layer.resident[i] and not moved[i] and predicted[i] > most:
            found, most = i, predicted[i]
    task[0], task[1], task[2], task[3] = PREFETCH, found, IN_HBM, victim
    return bool(found >= 0)


@compiled
def relayout_task(
    layer: Layer, predicted: Floats, lanes: Lanes, moved: Bools, rule: Classes, limit: float,
    idle: int, task: Ints,
) -> float:  # fmt: skip
    """The expert whose layout suits its class least; its benefit, 0: all suit."""
    best = 0.0
    room = lanes.space.min() * len(lanes.space) >= 1.0
    for i in range(len(predicted)):
        if moved[i]:
            continue
        if _is_localized(layer, i) and room and predicted[i] > limit * (1.0 + rule.margin):
            gain, to, lane = predicted[i] - limit, STRIPED, layer.dimm[i] + 1
        elif _is_striped(layer, i) and idle >= 0 and predicted[i] < limit * (1.0 - rule.margin):
            gain, to, lane = limit - predicted[i], idle, idle + 1
        else:
            continue
        if gain > best and has_time(lanes, lane, lanes.link_ns):
            best = gain
            task[0], task[1], task[2], task[3] = RELAYOUT, i, to, -1
    return float(best)


@compiled
def rebalance_task(
    layer: Layer, predicted: Floats, lanes: Lanes, moved: Bools, rule: Classes, limit: float,
    loads: Floats, units: int, idle: int, task: Ints,
) -> float:  # fmt: skip
    """Find, from the busiest DIMM to the idlest, the cold expert that lowers the larger of the two
    loads most; its benefit, 0: there is no skew, or no such expert."""
    of_dimms = loads[FIRST_DIMM : FIRST_DIMM + units]
    if idle < 0:
        return 0.0
    busiest = int(np.argmax(of_dimms))
    gap = of_dimms[busiest] - of_dimms[idle]
    if of_dimms[busiest] <= rule.skew * of_dimms.mean() or gap <= 0.0:
        return 0.0
    if not has_time(lanes, busiest + 1, lanes.link_ns):
        return 0.0
    if not has_time(lanes, idle + 1, lanes.link_ns):
        return 0.0
    best = 0.0
    for i in range(len(predicted)):
        if moved[i] or layer.dimm[i] != busiest or predicted[i] > limit:
            continue
        gain = min(predicted[i], gap - predicted[i])
        if gain > best and _is_localized(layer, i):
            best = gain
            task[0], task[1], task[2], task[3] = REBALANCE, i, idle, -1
    return float(best)


@compiled
def carry_out(
    costs: TriCosts, layer: Layer, predicted: Floats, lanes: Lanes, moved: Bools, limit: float,
    loads: Floats, task: Ints,
) -> None:  # fmt: skip
    """Carry out moves in `layer`, `lanes`, `moved` and the DIMMs' `loads`."""
    expert, to = task[1], task[2]
    source = layer.dimm[expert]
    counted = predicted[expert] if predicted[expert] <= limit else 0.0
    if task[0] == PREFETCH:
        occupy(lanes, PCIE_LANE, costs.pcie_ns)
        victim = task[3]
        layer.resident[victim] = False
        if layer.dimm[victim] >= 0 and predicted[victim] <= limit:
            loads[FIRST_DIMM + layer.dimm[victim]] += predicted[victim]
    else:
        if source >= 0:
            occupy(lanes, source + 1, lanes.link_ns)
        if to >= 0:
            occupy(lanes, to + 1, lanes.link_ns)
            loads[FIRST_DIMM + to] += counted
        account(lanes.space, source, to)
    if source >= 0:
        loads[FIRST_DIMM + source] -= counted
    moved[expert] = True
    place(layer, expert, to)


@compiled
def plan_class_moves(
    costs: TriCosts, layer: Layer, predicted: Floats, still: Bools, lanes: Lanes, kinds: Bools,
    rule: Classes, moves: Ints,
) -> int:  # fmt: skip
    """Moves for one layer into `moves[n, MOVE_WORDS]`, prefetches first and then by benefit; what
    is `still` stays out of it. `layer` becomes what it will be, `lanes` what is left of them."""
    ordered = np.sort(predicted)[::-1]
    hot, warm = limit_behind(ordered, rule.hot), limit_behind(ordered, rule.hot + rule.warm)
    loads = cold_loads(layer, predicted, warm, costs.dimms)
    moved = still.copy()
    task, other = np.zeros_like(moves[0]), np.zeros_like(moves[0])
    count = 0
    while count < len(moves):
        idle = idlest(loads, lanes.space[: costs.units])
        found = kinds[PREFETCH] and prefetch_task(
            costs, layer, predicted, lanes, moved, rule, hot, task
        )
        if not found:
            gain = 0.0
            if kinds[RELAYOUT]:
                gain = relayout_task(layer, predicted, lanes, moved, rule, warm, idle, task)
            if kinds[REBALANCE] and gain < rebalance_task(
                layer, predicted, lanes, moved, rule, warm, loads, costs.units, idle, other
            ):
                task[:] = other
                gain = 1.0
            if gain <= 0.0:
                break
        carry_out(costs, layer, predicted, lanes, moved, warm, loads, task)
        moves[count] = task
        count += 1
    return count
