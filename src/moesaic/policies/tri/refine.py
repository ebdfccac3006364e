"""TriMoE's schedule of a layer (section 4.2): every expert where it is cheapest by itself, then
experts of the bottleneck are reassigned, the most expensive first, "until no re-assignment can
further reduce the global makespan, or a maximum iteration limit is reached"."""

from __future__ import annotations

import numpy as np

from moesaic.policies.compiled import compiled
from moesaic.policies.tri.costs import ON_CPU, OPTIONS, Floats
from moesaic.policies.tri.layer import Ints, Options, busy_times, peak_after

REFINE = 256  # reassignments; the paper gives no number
EVERY = 0  # candidates per iteration: all experts of the bottleneck


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
def next_candidate(options: Options, choice: Ints, bottleneck: int, after: int) -> int:
    """The expert that occupies the bottleneck longest of those behind `after` (-1: of all), the
    lower number first among equals; -1: there is none."""
    limit = np.inf if after < 0 else options.use[after, choice[after], bottleneck]
    found, longest = -1, 0.0
    for i in range(len(choice)):
        occupied = options.use[i, choice[i], bottleneck]
        behind = occupied < limit or (occupied == limit and i > after)
        if behind and occupied > longest:
            found, longest = i, occupied
    return found


@compiled
def best_reassignment(
    options: Options, choice: Ints, busy: Floats, candidate: int
) -> tuple[int, float]:
    """The other device with which the makespan is least, and that makespan; -1: none reduces it. Of
    two devices with the same makespan, the one that the expert adds less time to is taken."""
    now = choice[candidate]
    to, least, delta = -1, busy.max(), np.inf
    for option in range(OPTIONS):
        added = options.time[candidate, option]
        if option == now or added == np.inf:
            continue
        end = peak_after(busy, options.use[candidate, now], options.use[candidate, option])
        if end < least or (end == least and to >= 0 and added < delta):
            to, least, delta = option, end, added
    return to, float(least)


@compiled
def refine(options: Options, choice: Ints, iterations: int, candidates: int = EVERY) -> float:
    """Changes `choice` in place; returns its makespan. In every iteration the bottleneck's experts
    are tried by falling cost until reassigning one reduces the makespan; `candidates` of them at
    most (1: it ends when the most expensive one has to stay)."""
    busy = busy_times(options, choice)
    for _ in range(iterations):
        bottleneck = int(np.argmax(busy))
        candidate, tried, to = -1, 0, -1
        while to < 0 and (candidates == EVERY or tried < candidates):
            candidate = next_candidate(options, choice, bottleneck, candidate)
            if candidate < 0:
                break
            to, _after = best_reassignment(options, choice, busy, candidate)
            tried += 1
        if to < 0:
            break
        busy += options.use[candidate, to] - options.use[candidate, choice[candidate]]
        choice[candidate] = to
    return float(busy.max())


@compiled
def trimoe(options: Options, iterations: int, candidates: int = EVERY) -> Ints:
    choice = greedy(options)
    refine(options, choice, iterations, candidates)
    return choice


def trimoe_from_the_end(options: Options, iterations: int, candidates: int = EVERY) -> Ints:
    """The same, but of equally expensive experts the last one is tried first. The paper states no
    order, and it decides where the refinement ends."""
    turned = Options(options.use[::-1].copy(), options.time[::-1].copy(), options.base)
    return trimoe(turned, iterations, candidates)[::-1].copy()
