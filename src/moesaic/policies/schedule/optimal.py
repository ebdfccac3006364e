"""The exact makespan of a layer, as a bound for the fast schedules. Not for speed.

Given who serves which expert, the order is no question: the link moves experts by falling GPU
time (Johnson's rule, all transfers being equal), the GPU takes experts as they become ready, the
CPU's order does not matter. What remains is a choice per expert: up to `EXHAUSTIVE` of them are
tried in full, beyond that a mixed-integer program decides, to within `GAP` of the optimum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import MissingExtra
from moesaic.policies.compiled import compiled
from moesaic.policies.schedule.base import Assignment, Schedule, Work, served_as
from moesaic.policies.schedule.best_split import IN_ORDER, best_split
from moesaic.policies.schedule.improve import improve
from moesaic.policies.timelines import (
    ABSENT,
    CPU_FIRST,
    CPU_FREE,
    GPU_FREE,
    LINK_FREE,
    LOAD,
    MOVED,
    ON_CPU,
    ON_GPU,
    READY,
    TRANSFER,
    Ints,
    finish_time,
)

EXHAUSTIVE = 14
GAP = 1e-3


@compiled
def try_all(kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int) -> int:
    """Every way to serve n experts; leaves the best in `kind`. Bit i set: expert i on the CPU."""
    best = np.int64(-1)
    chosen = 0
    for choice in range(1 << n):
        for i in range(n):
            on_gpu = MOVED if ready[i] == ABSENT else ON_GPU
            kind[i] = ON_CPU if choice >> i & 1 else on_gpu
        end = finish_time(kind, ready, gpu, cpu, lanes, n)
        if best < 0 or end < best:
            best = np.int64(end)
            chosen = choice
    for i in range(n):
        on_gpu = MOVED if ready[i] == ABSENT else ON_GPU
        kind[i] = ON_CPU if chosen >> i & 1 else on_gpu
    return int(best)


def solve(ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints) -> Ints:
    """The same by a mixed-integer program: x[i] = 1 puts expert i on the CPU, u = 1 if any is
    there, and the last variable is the makespan. Experts are sorted by falling GPU time."""
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ImportError as error:
        raise MissingExtra(
            f"schedule 'optimal' with more than {EXHAUSTIVE} experts", "optimal"
        ) from error
    n = len(ready)
    static = np.where(ready == 0, ON_GPU, ON_CPU)
    horizon = finish_time(static, ready, gpu, cpu, lanes, n)
    absent = ready == ABSENT
    movable = absent & (lanes[LINK_FREE] + lanes[TRANSFER] < horizon)  # keeps the numbers small
    rows, lower = _constraints(ready, movable, gpu, cpu, lanes)
    cost = np.zeros(n + 2)
    cost[-1] = 1.0
    least = np.append((absent & ~movable).astype(float), [0.0, 0.0])
    bounds = Bounds(least, np.append(np.ones(n + 1), np.inf))
    found = milp(
        cost,
        constraints=LinearConstraint(rows, lb=lower),
        integrality=np.append(np.ones(n + 1), 0),
        bounds=bounds,
        options={"mip_rel_gap": GAP},
    )
    assert found.success, f"the solver gave up: {found.message}"
    on_cpu = found.x[:n] > 0.5
    kind = np.where(on_cpu, ON_CPU, np.where(absent, MOVED, ON_GPU))
    return kind.astype(np.int64)


def _constraints(
    ready: Ints, movable: NDArray[np.bool_], gpu: Ints, cpu: Ints, lanes: Ints
) -> tuple[NDArray[np.float64], list[float]]:
    """Rows a with a @ (x, u, makespan) >= bound."""
    n = len(ready)
    rows: list[Any] = []
    lower: list[float] = []

    def require(on_cpu: NDArray[np.float64], used: float, bound: float) -> None:
        rows.append(np.concatenate([on_cpu, [used, 1.0]]))
        lower.append(bound)

    require(-cpu.astype(float), -float(lanes[CPU_FIRST]), float(lanes[CPU_FREE]))
    require(gpu.astype(float), 0.0, float(lanes[GPU_FREE] + gpu.sum()))
    late = ready > 0
    for i in np.flatnonzero(late):  # from its arrival on: what is late, then what is moved
        after = movable | (late & (ready >= ready[i]))
        big = float(ready[i] + gpu[after].sum())
        coefficients = np.where(after, gpu, 0).astype(float)
        coefficients[i] = big
        require(coefficients, 0.0, big)
    # If i is moved: everything moved up to it, then the GPU with everything moved from it on.
    for moved, i in enumerate(np.flatnonzero(movable), start=1):
        earlier = movable & (np.arange(n) <= i)
        later = movable & (np.arange(n) >= i)
        total = float(lanes[LINK_FREE] + moved * lanes[TRANSFER] + gpu[later].sum())
        coefficients = np.where(earlier, float(lanes[TRANSFER]), 0.0) + np.where(later, gpu, 0)
        coefficients[i] = total
        require(coefficients, 0.0, total)
    for expert in range(n):  # u >= x[i]
        row = np.zeros(n + 2)
        row[expert], row[n] = -1.0, 1.0
        rows.append(row)
        lower.append(0.0)
    return np.array(rows), lower


class Optimal(Schedule):
    def assign(self, work: Work) -> Assignment:
        n = work.n
        gpu_ns = work.belief.tables[0, work.table[LOAD, :n]]
        johnson = work.table[:, :n][:, np.argsort(-gpu_ns, kind="stable")]
        work = replace(work, table=np.ascontiguousarray(johnson))
        loads, ready = work.table[LOAD], work.table[READY]
        gpu, cpu = work.belief.tables[0, loads], work.belief.tables[1, loads]
        kind = np.zeros(n, dtype=np.int64)
        if n <= EXHAUSTIVE:
            try_all(kind, ready, gpu, cpu, work.lanes, n)
            return served_as(work, kind)
        found = served_as(work, solve(ready, gpu, cpu, work.lanes))
        split = best_split(kind, ready, gpu, cpu, work.lanes, n, IN_ORDER)
        # It may be ahead, within the gap.
        improve(kind, ready, gpu, cpu, work.lanes, n, split, np.zeros(n, dtype=np.int64))
        return min(found, served_as(work, kind), key=lambda assignment: assignment.believed_ns)
