"""TriMoE's schedule of a layer (section 4.2): every expert where it is cheapest by itself, then
the bottleneck's most expensive expert is reassigned while the makespan falls."""

from __future__ import annotations

import numpy as np

from moesaic.policies.compiled import compiled
from moesaic.policies.tri.costs import ON_CPU, OPTIONS
from moesaic.policies.tri.layer import Ints, Options, busy_times

REFINE = 32  # iterations; the paper gives no number


@compiled
def greedy(options: Options) -> Ints:
    """The option with the smallest own cost. Reading a localized expert takes CPU and GPU equally
    long: then it is the CPU, which does not need the PCIe link."""
    n = len(options.time)
    choice = np.full(n, ON_CPU, dtype=np.int64)
    for i in range(n):
        for option in range(OPTIONS):
            if options.time[i, option] < options.time[i, choice[i]]:
                choice[i] = option
    return choice


@compiled
def refine(options: Options, choice: Ints, iterations: int) -> float:
    """Changes `choice` in place; returns its makespan. The candidate is the expert that occupies
    the bottleneck longest; of two moves with the same new makespan, the one that adds less time to
    the receiving device is taken."""
    busy = busy_times(options, choice)
    best = busy.max()
    for _ in range(iterations):
        bottleneck = np.argmax(busy)
        candidate = -1
        longest = 0.0
        for i in range(len(choice)):
            occupied = options.use[i, choice[i], bottleneck]
            if occupied > longest:
                longest, candidate = occupied, i
        if candidate < 0:
            break
        now = choice[candidate]
        to, after, delta = -1, best, np.inf
        for option in range(OPTIONS):
            added = options.time[candidate, option]
            if option == now or added == np.inf:
                continue
            moved = busy - options.use[candidate, now] + options.use[candidate, option]
            end = moved.max()
            if end < after or (end == after and to >= 0 and added < delta):
                to, after, delta = option, end, added
        if to < 0:
            break
        busy += options.use[candidate, to] - options.use[candidate, now]
        choice[candidate] = to
        best = after
    return float(best)


@compiled
def trimoe(options: Options, iterations: int) -> Ints:
    choice = greedy(options)
    refine(options, choice, iterations)
    return choice
