"""The optimum of each layer alone, as a yardstick for the fast schedules. Not for speed.

No other assignment of this layer's experts is believed to end earlier: the CPU is counted as slower
while the link is busy, where the machine is so. It is a bound on a layer, not on a run: what a
layer moves stays in the cache and keeps the link busy, which other layers see.

Given who serves which expert, the order is no question: the link moves experts by falling GPU
time (Johnson's rule, all transfers being equal), the GPU takes experts as they become ready, the
CPU's order does not matter. What remains is a choice per expert: up to `EXHAUSTIVE` of them are
tried in full, beyond that a mixed-integer program decides (optimal_program.py), to within `GAP` of
the optimum. Of assignments that end together the one with the fewest moves is taken, then the one
with the fewest experts on the CPU, and of equal loads the first are moved: those that the cache
values most."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moesaic.policies.compiled import compiled
from moesaic.policies.schedule.base import Assignment, Schedule, Work, served_as
from moesaic.policies.schedule.best_split import split_in_order
from moesaic.policies.schedule.improve import improve
from moesaic.policies.schedule.optimal_program import solve
from moesaic.policies.schedule.splits import IN_ORDER, best_split
from moesaic.policies.timelines import (
    ABSENT,
    LOAD,
    MOVED,
    ON_CPU,
    ON_GPU,
    READY,
    Ints,
    finish_time,
)

EXHAUSTIVE = 14


@compiled
def try_all(kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int) -> int:
    """Every way to serve n experts; leaves the best in `kind`. Bit i set: expert i on the CPU."""
    best = np.int64(-1)
    chosen = 0
    fewest = 0  # changes of the best: a move counts more than all experts on the CPU
    for choice in range(1 << n):
        for i in range(n):
            on_gpu = MOVED if ready[i] == ABSENT else ON_GPU
            kind[i] = ON_CPU if choice >> i & 1 else on_gpu
        end = finish_time(kind, ready, gpu, cpu, lanes, n)
        if best >= 0 and end > best:
            continue
        changes = 0
        for i in range(n):
            changes += n + 1 if kind[i] == MOVED else kind[i] == ON_CPU
        if best < 0 or end < best or changes <= fewest:
            best = np.int64(end)
            chosen = choice
            fewest = changes
    for i in range(n):
        on_gpu = MOVED if ready[i] == ABSENT else ON_GPU
        kind[i] = ON_CPU if chosen >> i & 1 else on_gpu
    return int(best)


class Optimal(Schedule):
    expected_rule = staticmethod(split_in_order)  # by which the look-ahead values a layer
    sees_contention = True

    def assign(self, work: Work) -> Assignment:
        n = work.n
        gpu_ns = work.belief.tables[0, work.table[LOAD, :n]]
        johnson = work.table[:, :n][:, np.argsort(-gpu_ns, kind="stable")]
        work = replace(work, table=np.ascontiguousarray(johnson))
        loads, ready = work.table[LOAD], work.table[READY]
        gpu, cpu = work.belief.tables[0, loads], work.belief.tables[1, loads]
        kind, spare = np.zeros((2, n), dtype=np.int64)
        if n <= EXHAUSTIVE:
            try_all(kind, ready, gpu, cpu, work.lanes, n)
            return served_as(work, kind)
        split = best_split(kind, ready, gpu, cpu, work.lanes, n, IN_ORDER, spare)
        improve(kind, ready, gpu, cpu, work.lanes, n, split, spare)
        found = [served_as(work, kind), served_as(work, solve(ready, gpu, cpu, work.lanes))]
        return min(found, key=lambda assignment: assignment.believed_ns)  # within the gap
