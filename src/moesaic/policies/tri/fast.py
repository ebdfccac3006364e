"""A schedule close to the exact one in well under a millisecond: prices, then local search.

There are about 30 resources. A price per resource and nanosecond makes every expert's choice
independent: it takes the option that is cheapest at these prices. Prices of resources that are
overused rise (multiplicative weights); the choices' averages approach the linear program's
solution, and each set of prices proves a lower bound. Rounded choices are then repaired: single
reassignments off the bottleneck, and pairs where the second makes space for the first."""

from __future__ import annotations

import numpy as np

from moesaic.policies.compiled import compiled
from moesaic.policies.tri.costs import OPTIONS, Floats
from moesaic.policies.tri.layer import Ints, Options, busy_times, peak_after
from moesaic.policies.tri.refine import greedy

ROUNDS = 40  # of prices
KICKS = 10  # restarts of the local search around the best choice
CLOSE = 1.003  # times the lower bound: nothing to gain beyond
_STEP = 8.0  # how strongly prices follow use
_CHAINS = 64  # improvements of one local search


@compiled
def respond(options: Options, prices: Floats, choice: Ints) -> float:
    """Every expert's cheapest option at these prices; returns the lower bound this proves."""
    bound = (prices * options.base).sum()
    resources = len(prices)
    for i in range(len(choice)):
        least = np.inf
        for option in range(OPTIONS):
            if options.time[i, option] == np.inf:
                continue
            price = 0.0
            for r in range(resources):
                price += prices[r] * options.use[i, option, r]
            if price < least:
                least, choice[i] = price, option
        bound += least
    return float(bound)


@compiled
def priced(options: Options, rounds: int, best: Ints, popular: Ints) -> tuple[float, float]:
    """Leaves the best choice seen in `best` and the most frequent ones in `popular`; returns the
    makespan of the former and the lower bound."""
    n, resources = len(options.time), len(options.base)
    counts = np.zeros((n, OPTIONS))
    choice = greedy(options)
    best[:] = choice
    busy = busy_times(options, choice)
    end = busy.max()
    total = np.zeros(resources)
    bound = 0.0
    for number in range(rounds):
        scale = max(end, 1.0)
        total += busy / scale
        weights = np.exp(_STEP * (total - total.max()) / np.sqrt(number + 1.0))
        bound = max(bound, respond(options, weights / weights.sum(), choice))
        busy = busy_times(options, choice)
        for i in range(n):
            counts[i, choice[i]] += 1.0 + number  # later prices are better ones
        if busy.max() < end:
            end = busy.max()
            best[:] = choice
        if end <= CLOSE * bound:
            break
    for i in range(n):
        popular[i] = np.argmax(counts[i])
    return float(end), float(bound)


@compiled
def reassign(options: Options, choice: Ints, busy: Floats, i: int, option: int) -> None:
    busy += options.use[i, option] - options.use[i, choice[i]]
    choice[i] = option


@compiled
def single(options: Options, choice: Ints, busy: Floats) -> bool:
    """The reassignment of one expert off the bottleneck that lowers the makespan most."""
    bottleneck = np.argmax(busy)
    best, expert, to = busy[bottleneck] * (1 - 1e-9), -1, -1
    for i in range(len(choice)):
        now = choice[i]
        held = options.use[i, now, bottleneck]
        for option in range(OPTIONS):
            if option == now or not options.use[i, option, bottleneck] < held:
                continue
            if options.time[i, option] == np.inf:
                continue
            end = peak_after(busy, options.use[i, now], options.use[i, option])
            if end < best:
                best, expert, to = end, i, option
    if expert >= 0:
        reassign(options, choice, busy, expert, to)
    return expert >= 0


@compiled
def pair(options: Options, choice: Ints, busy: Floats) -> bool:
    """One expert leaves the bottleneck, another makes space where it goes; the first such pair that
    lowers the makespan is taken."""
    n = len(choice)
    bottleneck = np.argmax(busy)
    limit = busy[bottleneck] * (1 - 1e-9)
    after = np.empty_like(busy)
    for i in range(n):
        now = choice[i]
        held = options.use[i, now, bottleneck]
        for option in range(OPTIONS):
            if option == now or not options.use[i, option, bottleneck] < held:
                continue
            if options.time[i, option] == np.inf:
                continue
            after[:] = busy - options.use[i, now] + options.use[i, option]
            full = np.argmax(after)
            for j in range(n):
                if j == i:
                    continue
                was = choice[j]
                takes = options.use[j, was, full]
                for other in range(OPTIONS):
                    if (
                        other == was
                        or not after[full] - takes + options.use[j, other, full] < limit
                    ):
                        continue
                    if options.time[j, other] == np.inf:
                        continue
                    if peak_after(after, options.use[j, was], options.use[j, other]) < limit:
                        reassign(options, choice, busy, i, option)
                        reassign(options, choice, busy, j, other)
                        return True
    return False


@compiled
def search(options: Options, choice: Ints, enough: float) -> float:
    """Local search in place; returns the makespan. Stops at `enough`."""
    busy = busy_times(options, choice)
    for _ in range(_CHAINS):
        if busy.max() <= enough:
            break
        if not single(options, choice, busy) and not pair(options, choice, busy):
            break
    return float(busy.max())


@compiled
def kick(options: Options, choice: Ints, seed: int) -> int:
    """Reassign a few experts at random; returns the next seed (a linear congruential one, so that
    equal layers get equal schedules)."""
    n = len(choice)
    for _ in range(3):
        seed = (seed * 1103515245 + 12345) % 2147483648
        i = (seed >> 8) % n
        option = (choice[i] + 1 + (seed >> 20) % (OPTIONS - 1)) % OPTIONS
        if options.time[i, option] < np.inf:
            choice[i] = option
    return int(seed)


@compiled
def balanced(options: Options, rounds: int, kicks: int) -> tuple[Ints, float, float]:
    """The choice, its makespan and a proven lower bound."""
    n = len(options.time)
    best, other = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    _, bound = priced(options, rounds, best, other)
    enough = CLOSE * bound
    end = search(options, best, enough)
    seed = 1
    for number in range(kicks + 1):
        if end <= enough:
            break
        if number:
            other[:] = best
            seed = kick(options, other, seed)
        found = search(options, other, enough)
        if found < end:
            end = found
            best[:] = other
    return best, float(end), float(bound)
