"""The offline layout optimised together with the schedule, on samples of a trace.

The cut by expected load (layout.py) ignores that experts are active together and that the scheduler
reacts. Here the layout is improved move by move: the one that lowers the mean smooth makespan over
all samples most, every sample's schedule being fixed meanwhile and made anew now and then."""

from __future__ import annotations

import numpy as np

from moesaic.policies.compiled import compiled
from moesaic.policies.tri.costs import ON_NDP, OPTIONS, Floats, TriCosts
from moesaic.policies.tri.fast import balanced
from moesaic.policies.tri.layer import (
    ALL_DEVICES,
    FIRST_DIMM,
    NO_DIMM,
    Bools,
    Ints,
    Layer,
    Options,
    Places,
    busy_times,
    fill_expert,
    fill_options,
    num_resources,
)
from moesaic.policies.tri.layout import offline_layout
from moesaic.policies.tri.migrate import IN_HBM, place, smooth_peak

SAMPLES = 16
PASSES = 8  # schedules made anew
MOVES = 12  # between them
_TARGETS = 4  # the idlest DIMMs are tried
_POWER = 8.0


@compiled
def schedule_samples(
    costs: TriCosts, loads: Ints, layer: Layer, devices: Bools, use: Floats, time: Floats,
    choice: Ints, busy: Floats,
) -> float:  # fmt: skip
    """Fills [samples, ...] arrays; returns the mean makespan. Inactive experts use nothing."""
    total = 0.0
    for s in range(len(loads)):
        here = Layer(loads[s], layer.resident, layer.striped, layer.dimm, layer.span, layer.base)
        fill_options(costs, here, devices, use[s], time[s])
        for e in range(loads.shape[1]):
            if loads[s, e] == 0:
                use[s, e] = 0.0
        options = Options(use[s], time[s], layer.base)
        choice[s] = balanced(options, 16, 0)[0]
        busy[s] = busy_times(options, choice[s])
        total += busy[s].max()
    return float(total / len(loads))


@compiled
def value_of(
    costs: TriCosts, loads: Ints, layer: Layer, devices: Bools, use: Floats, choice: Ints,
    busy: Floats, e: int, rows: Floats, times: Floats,
) -> float:  # fmt: skip
    """The sum of smooth makespans if expert e lay as `layer` says; its best option per sample."""
    total = 0.0
    for s in range(len(loads)):
        scale = max(busy[s].max(), 1.0)
        out = use[s, e, choice[s, e]]
        if loads[s, e] == 0:
            total += scale * smooth_peak(busy[s], out, out, scale) ** (1 / _POWER)
            continue
        here = Layer(loads[s], layer.resident, layer.striped, layer.dimm, layer.span, layer.base)
        fill_expert(costs, here, e, devices, rows, times)
        least = np.inf
        for option in range(OPTIONS):
            if times[option] < np.inf:
                least = min(least, smooth_peak(busy[s], out, rows[option], scale))
        total += scale * least ** (1 / _POWER)
    return float(total)


@compiled
def settle(
    costs: TriCosts, loads: Ints, layer: Layer, devices: Bools, use: Floats, time: Floats,
    choice: Ints, busy: Floats, e: int,
) -> None:  # fmt: skip
    """Expert e lies elsewhere now: its rows and best options in every sample."""
    for s in range(len(loads)):
        if loads[s, e] == 0:
            continue
        busy[s] -= use[s, e, choice[s, e]]
        here = Layer(loads[s], layer.resident, layer.striped, layer.dimm, layer.span, layer.base)
        fill_expert(costs, here, e, devices, use[s, e], time[s, e])
        nothing = np.zeros(busy.shape[1])
        scale, least = max(busy[s].max(), 1.0), np.inf
        for option in range(OPTIONS):
            if time[s, e, option] < np.inf:
                value = smooth_peak(busy[s], nothing, use[s, e, option], scale)
                if value < least:
                    least, choice[s, e] = value, option
        busy[s] += use[s, e, choice[s, e]]


@compiled
def improve(
    costs: TriCosts, loads: Ints, layer: Layer, devices: Bools, use: Floats, time: Floats,
    choice: Ints, busy: Floats, exchange: bool,
) -> bool:  # fmt: skip
    """The best single change of the layout, carried out; False: none helps."""
    experts = loads.shape[1]
    rows, times = np.empty((OPTIONS, busy.shape[1])), np.empty(OPTIONS)
    mean = np.zeros(costs.units)
    for s in range(len(loads)):
        mean += busy[s, FIRST_DIMM : FIRST_DIMM + costs.units]
    idle = np.argsort(mean)
    victim = -1
    for e in range(experts):
        if (
            exchange
            and layer.resident[e]
            and (victim < 0 or loads[:, e].sum() < loads[:, victim].sum())
        ):
            victim = e
    best, expert, to = 1e-4, -1, 0
    for e in range(experts):
        if layer.resident[e] or loads[:, e].sum() == 0:
            continue
        now = value_of(costs, loads, layer, devices, use, choice, busy, e, rows, times)
        striped, dimm = layer.striped[e], layer.dimm[e]
        for number in range(IN_HBM, min(_TARGETS, costs.units)):  # -2, -1 (striped), DIMMs
            target = number if number < 0 else idle[number]
            if target == IN_HBM and (victim < 0 or loads[:, victim].sum() >= loads[:, e].sum()):
                continue
            if target == dimm or (target >= 0 and not devices[ON_NDP]):
                continue
            place(layer, e, target)
            value = value_of(costs, loads, layer, devices, use, choice, busy, e, rows, times)
            layer.resident[e], layer.striped[e], layer.dimm[e] = False, striped, dimm
            gain = (now - value) / max(now, 1.0)
            if gain > best:
                best, expert, to = gain, e, target
    if expert < 0:
        return False
    if to == IN_HBM:
        layer.resident[victim] = False
        settle(costs, loads, layer, devices, use, time, choice, busy, victim)
    place(layer, expert, to)
    settle(costs, loads, layer, devices, use, time, choice, busy, expert)
    return True


def joint_layout(costs: TriCosts, loads: Ints, slots: int, devices: Bools = ALL_DEVICES) -> Places:
    """`loads[samples, experts]` of one layer in a trace."""
    return improved_layout(costs, loads, offline_layout(costs, loads, slots, devices), devices)


def improved_layout(
    costs: TriCosts,
    loads: Ints,
    start: Places,
    devices: Bools = ALL_DEVICES,
    exchange: bool = True,
) -> Places:
    """`SAMPLES` of the loads are used; `exchange`: also what is in GPU memory may change."""
    picked = np.linspace(0, len(loads) - 1, min(SAMPLES, len(loads))).astype(np.int64)
    sample = np.ascontiguousarray(loads[picked], dtype=np.int64)
    shape = (len(sample), loads.shape[1], OPTIONS)
    use, time = np.empty((*shape, num_resources(costs))), np.empty(shape)
    choice = np.zeros(shape[:2], dtype=np.int64)
    busy = np.zeros((len(sample), num_resources(costs)))
    found, least = start, np.inf
    now = start.copy()
    layer = Layer(sample[0], *now, np.zeros(num_resources(costs)))
    for _ in range(PASSES):
        mean = schedule_samples(costs, sample, layer, devices, use, time, choice, busy)
        if mean < least:
            found, least = now.copy(), mean
        changed = 0
        while changed < MOVES and improve(
            costs, sample, layer, devices, use, time, choice, busy, exchange
        ):
            changed += 1
        if not changed:
            break
    return found


def with_copies(layout: Places, loads: Ints, copies: int) -> Places:
    """The layout that also stripes the `copies` most used localized experts, so that the CPU can
    take them at full bandwidth when their DIMM is busy; they need their memory twice."""
    changed = layout.copy()
    local = np.flatnonzero((layout.dimm != NO_DIMM) & ~layout.resident)
    most = local[np.argsort(-loads.sum(axis=0)[local], kind="stable")][:copies]
    changed.striped[most] = True
    return changed


def with_splits(layout: Places, loads: Ints, splits: int, span: int, dimms: int) -> Places:
    """Divide the `splits` most used localized experts over `span` neighbouring DIMMs each."""
    changed = layout.copy()
    local = np.flatnonzero((layout.dimm != NO_DIMM) & ~layout.resident)
    most = local[np.argsort(-loads.sum(axis=0)[local], kind="stable")][:splits]
    changed.span[most] = min(span, dimms)
    changed.dimm[most] -= changed.dimm[most] % min(span, dimms)
    return changed
