"""Which experts to move while the GPU computes attention and MLP (TriMoE section 4.3, online).

Three kinds: a hot expert into GPU memory, over PCIe, for a resident one; between striped and
localized; from a busy DIMM to an idle one, both over DIMM-Link. Each is worth what it takes off the
predicted makespan. Since the makespan only sees the busiest resource, use is valued smoothly: the
sum of its POWER-th powers. The best move is taken again and again until no lane has time left."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moesaic.policies.compiled import compiled
from moesaic.policies.tri.costs import OPTIONS, Floats, TriCosts
from moesaic.policies.tri.layer import (
    FIRST_DIMM,
    NO_DIMM,
    Bools,
    Ints,
    Layer,
    Options,
    busy_times,
    fill_expert,
    fill_options,
)
from moesaic.policies.tri.refine import greedy, refine

PREFETCH, RELAYOUT, REBALANCE = 0, 1, 2  # kinds of moves
PCIE_LANE = 0  # DIMM d's link is lane d + 1
STRIPED = -1  # a destination; others are DIMMs
IN_HBM = -2
MOVE_WORDS = 4  # kind, expert, destination, victim or -1
MAX_MOVES = 8
LEAST_GAIN = 0.01  # of the smooth makespan; smaller ones are noise of the prediction
_ROUNDS = 48
_DOUBLINGS = 3  # POWER = 8


class Lanes(NamedTuple):
    """`free_ns[lane]` from the start of the window on; a move must start in the window, and end in
    it unless `carry`. `space[dimm]`: how many more experts fit, a striped one being spread over
    all DIMMs."""

    free_ns: Floats
    space: Floats
    window_ns: float
    link_ns: float  # of one expert over one DIMM-Link
    carry: bool


@compiled
def smooth_peak(busy: Floats, out: Floats, into: Floats, scale: float) -> float:
    total = 0.0
    for r in range(len(busy)):
        share = (busy[r] - out[r] + into[r]) / scale
        for _ in range(_DOUBLINGS):
            share *= share
        total += share
    return float(total)


@compiled
def scale_down(use: Floats, predicted: Floats, loads: Ints) -> None:
    """An expert that is active in one step of three occupies a third."""
    for i in range(len(loads)):
        if predicted[i] < loads[i]:
            use[i] *= predicted[i] / loads[i]


@compiled
def has_time(lanes: Lanes, lane: int, takes: float) -> bool:
    start = max(lanes.free_ns[lane], 0.0)
    if lanes.carry:
        return bool(start < lanes.window_ns)
    return bool(start + takes <= lanes.window_ns)


@compiled
def best_option(
    options: Options, busy: Floats, out: Floats, use: Floats, time: Floats, scale: float
) -> tuple[int, float]:
    to, least = -1, np.inf
    for option in range(OPTIONS):
        if time[option] < np.inf:
            value = smooth_peak(busy, out, use[option], scale)
            if value < least:
                to, least = option, value
    return to, float(least)


@compiled
def place(layer: Layer, i: int, to: int) -> None:
    """A localized or striped expert leaves where it was; one in GPU memory keeps its copy."""
    if to == IN_HBM:
        layer.resident[i] = True
        return
    layer.striped[i] = to == STRIPED
    layer.dimm[i] = NO_DIMM if to == STRIPED else to
    layer.span[i] = 1


@compiled
def destinations(
    layer: Layer, lanes: Lanes, kinds: Bools, pcie_ns: float, idle: int, i: int, found: Ints
) -> int:
    """Find the places where expert i could go now; return how many."""
    count = 0
    at = layer.dimm[i]
    if kinds[PREFETCH] and not layer.resident[i] and has_time(lanes, PCIE_LANE, pcie_ns):
        found[count] = IN_HBM
        count += 1
    if layer.resident[i] or layer.span[i] > 1 or (at >= 0 and layer.striped[i]):
        return count
    if at >= 0 and not has_time(lanes, at + 1, lanes.link_ns):
        return count
    if at >= 0 and kinds[RELAYOUT] and lanes.space.min() * len(lanes.space) >= 1.0:
        found[count] = STRIPED
        count += 1
    allowed = kinds[REBALANCE] if at >= 0 else kinds[RELAYOUT]
    if allowed and idle >= 0 and at != idle and has_time(lanes, idle + 1, lanes.link_ns):
        found[count] = idle
        count += 1
    return count


@compiled
def occupy(lanes: Lanes, lane: int, takes: float) -> None:
    lanes.free_ns[lane] = max(lanes.free_ns[lane], 0.0) + takes


@compiled
def idlest(busy: Floats, space: Floats) -> int:
    """The DIMM with least to do of those with space; -1: all are full."""
    found = -1
    for d in range(len(space)):
        if space[d] >= 1.0 and (found < 0 or busy[FIRST_DIMM + d] < busy[FIRST_DIMM + found]):
            found = d
    return found


@compiled
def account(space: Floats, source: int, to: int) -> None:
    """`source` and `to` are DIMMs or STRIPED."""
    if source >= 0:
        space[source] += 1.0
    else:
        space += 1.0 / len(space)
    if to >= 0:
        space[to] -= 1.0
    else:
        space -= 1.0 / len(space)


@compiled
def coldest_resident(layer: Layer, predicted: Floats, moved: Bools) -> int:
    found = -1
    for i in range(len(predicted)):
        if layer.resident[i] and not moved[i] and (found < 0 or predicted[i] < predicted[found]):
            found = i
    return found


@compiled
def one_move(
    costs: TriCosts, layer: Layer, predicted: Floats, lanes: Lanes, kinds: Bools, devices: Bools,
    options: Options, choice: Ints, busy: Floats, moved: Bools, move: Ints,
) -> bool:  # fmt: skip
    """The most valuable move; carried out in `layer`, `options`, `choice`, `busy` and `lanes`. What
    has `moved` is under way and stays out of it."""
    scale = max(busy.max(), 1.0)
    nothing = np.zeros_like(busy)
    now = smooth_peak(busy, nothing, nothing, scale)
    least = now * (1 - LEAST_GAIN) ** (1 << _DOUBLINGS)
    idle = idlest(busy, lanes.space[: costs.units])
    victim = coldest_resident(layer, predicted, moved)
    use, time = np.empty((OPTIONS, len(busy))), np.empty(OPTIONS)
    where = np.empty(3, dtype=np.int64)
    expert, to, option = -1, 0, 0
    for i in range(len(predicted)):
        if predicted[i] <= 0.0 or moved[i]:
            continue
        for number in range(destinations(layer, lanes, kinds, costs.pcie_ns, idle, i, where)):
            if where[number] == IN_HBM and (victim < 0 or predicted[victim] >= predicted[i]):
                continue
            held, was_striped, was_at = layer.resident[i], layer.striped[i], layer.dimm[i]
            place(layer, i, where[number])
            fill_expert(costs, layer, i, devices, use, time)
            layer.resident[i], layer.striped[i], layer.dimm[i] = held, was_striped, was_at
            use *= min(1.0, predicted[i] / layer.loads[i])
            o, value = best_option(options, busy, options.use[i, choice[i]], use, time, scale)
            if value < least:
                least, expert, to, option = value, i, where[number], o
    if expert < 0:
        return False
    source = layer.dimm[expert]
    move[1], move[2], move[3] = expert, to, victim if to == IN_HBM else -1
    move[0] = PREFETCH if to == IN_HBM else (REBALANCE if source >= 0 and to >= 0 else RELAYOUT)
    if to == IN_HBM:
        occupy(lanes, PCIE_LANE, costs.pcie_ns)
        layer.resident[victim] = False
        replace(costs, layer, predicted, devices, options, choice, busy, victim, -1)
    else:
        if source >= 0:
            occupy(lanes, source + 1, lanes.link_ns)
        if to >= 0:
            occupy(lanes, to + 1, lanes.link_ns)
        account(lanes.space, source, to)
    moved[expert] = True
    place(layer, expert, to)
    replace(costs, layer, predicted, devices, options, choice, busy, expert, option)
    return True


@compiled
def replace(
    costs: TriCosts, layer: Layer, predicted: Floats, devices: Bools, options: Options,
    choice: Ints, busy: Floats, i: int, option: int,
) -> None:  # fmt: skip
    """Expert i lies elsewhere now and is served by `option`, or by its best one (-1)."""
    busy -= options.use[i, choice[i]]
    fill_expert(costs, layer, i, devices, options.use[i], options.time[i])
    options.use[i] *= min(1.0, predicted[i] / max(layer.loads[i], 1))
    if option < 0:
        nothing = np.zeros_like(busy)
        scale = max(busy.max(), 1.0)
        option, _ = best_option(options, busy, nothing, options.use[i], options.time[i], scale)
    choice[i] = option
    busy += options.use[i, option]


@compiled
def plan_moves(
    costs: TriCosts, layer: Layer, predicted: Floats, devices: Bools, lanes: Lanes, kinds: Bools,
    moves: Ints,
) -> int:  # fmt: skip
    """Moves for one layer, best first, into `moves[n, MOVE_WORDS]`; `layer` (all experts, with the
    predicted loads rounded up) becomes what it will be, `lanes` what is left of them."""
    n, resources = len(predicted), len(layer.base)
    use, time = np.empty((n, OPTIONS, resources)), np.empty((n, OPTIONS))
    fill_options(costs, layer, devices, use, time)
    scale_down(use, predicted, layer.loads)
    options = Options(use, time, layer.base)
    choice = greedy(options)
    refine(options, choice, _ROUNDS)
    busy = busy_times(options, choice)
    count, moved = 0, np.zeros(n, dtype=np.bool_)
    while count < len(moves):
        if not one_move(
            costs, layer, predicted, lanes, kinds, devices, options, choice, busy, moved,
            moves[count],
        ):  # fmt: skip
            break
        count += 1
    return count


def idle_lanes(
    costs: TriCosts, window_ns: float, link_ns: float, carry: bool = True, space: float = np.inf
) -> Lanes:
    """Nothing under way, the same space in every DIMM."""
    free, room = np.zeros(costs.dimms + 1), np.full(costs.dimms, space)
    return Lanes(free, room, float(window_ns), float(link_ns), carry)
