"""The optimum of each layer alone, as a yardstick for the fast schedules. Not for speed.

No other assignment of this layer's experts is believed to end earlier: the CPU is counted as slower
while the link is busy, where the machine is so. It is a bound on a layer, not on a run: what a
layer moves stays in the cache and keeps the link busy, which other layers see.

Given who serves which expert, the order is no question: the link moves experts by falling GPU
time (Johnson's rule, all transfers being equal), the GPU takes experts as they become ready, the
CPU's order does not matter. What remains is a choice per expert: up to `EXHAUSTIVE` of them are
tried in full, beyond that a mixed-integer program decides, to within `GAP` of
the optimum. Of assignments that end together the one with the fewest moves is taken, then the one
with the fewest experts on the CPU, and of equal loads the first are moved: those that the cache
values most."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import MissingExtra
from moesaic.policies.compiled import compiled
from moesaic.policies.schedule.base import Assignment, Schedule, Work, served_as
from moesaic.policies.schedule.best_split import split_in_order
from moesaic.policies.schedule.improve import improve
from moesaic.policies.schedule.splits import IN_ORDER, best_split
from moesaic.policies.timelines import (
    ABSENT,
    ALONE,
    CPU_FIRST,
    CPU_FREE,
    CPU_SLOWED,
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


# The optimum of a layer of many experts, as a mixed-integer program. Binary variables: `x[i]`
# puts expert i on the CPU, `used` says that any is there, `outlasts` that the CPU works for
# longer than the link is busy, and `after[k, j]` that a moved expert j arrives no earlier than
# expert k, which was under way before, where both orders can be. Continuous ones: what the link
# costs the CPU, and the makespan, which is least. Experts are sorted by falling GPU time.

GAP = 1e-3


def solve(ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints) -> Ints:
    """How every expert is served."""
    n = len(ready)
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ImportError as error:
        raise MissingExtra(f"schedule 'optimal' with {n} experts in a layer", "optimal") from error
    program = _Program(ready, gpu, cpu, lanes)
    program.write()
    size = program.size
    cost, least, most = np.zeros(size), np.zeros(size), np.ones(size)
    cost[program.makespan] = 1.0
    least[:n] = (ready == ABSENT) & ~program.movable
    most[[program.delay, program.makespan]] = np.inf
    whole = np.ones(size)
    whole[[program.delay, program.makespan]] = 0
    found = milp(
        cost,
        constraints=LinearConstraint(np.array(program.rows), lb=program.lower),
        integrality=whole,
        bounds=Bounds(least, most),
        options={"mip_rel_gap": GAP},
    )
    assert found.success, f"the solver gave up: {found.message}"
    kind = np.where(ready == ABSENT, MOVED, ON_GPU)
    return np.where(found.x[:n] > 0.5, ON_CPU, kind).astype(np.int64)


class _Program:
    """Rows a with a @ variables >= bound. `pairs`: what is under way and what may be moved, where
    either may arrive first."""

    def __init__(self, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints) -> None:
        n = len(ready)
        self.ready, self.gpu, self.cpu, self.lanes, self.n = ready, gpu, cpu, lanes.tolist(), n
        static = np.where(ready == 0, ON_GPU, ON_CPU)
        horizon = finish_time(static, ready, gpu, cpu, lanes, n)
        first = self.lanes[LINK_FREE] + self.lanes[TRANSFER]
        self.movable = (ready == ABSENT) & (first < horizon)  # keeps the numbers small
        self.moves: list[int] = np.flatnonzero(self.movable).tolist()
        self.late: list[int] = np.flatnonzero(ready > 0).tolist()
        pairs = [(k, j) for k in self.late if ready[k] > first for j in self.moves]
        self.used, self.outlasts, self.delay, self.makespan = range(n, n + 4)
        self.after = {pair: n + 4 + number for number, pair in enumerate(pairs)}
        self.size = n + 4 + len(pairs)
        self.rows: list[NDArray[np.float64]] = []
        self.lower: list[float] = []

    def require(self, bound: float, *terms: tuple[Any, Any]) -> None:
        """The sum of (variables, their coefficients) is at least `bound`."""
        row = np.zeros(self.size)
        for variables, coefficients in terms:
            row[variables] += coefficients
        self.rows.append(row)
        self.lower.append(float(bound))

    def write(self) -> None:
        everything = self.lanes[GPU_FREE] + self.gpu.sum()
        self.require(everything, (slice(self.n), self.gpu), (self.makespan, 1))
        self._cpu()
        if self.lanes[CPU_SLOWED]:
            self._contention()
        for (late, moved), after in self.after.items():
            self._order(late, moved, after)
        for late in self.late:
            self._gpu_from_late(late)
        for moved in self.moves:
            self._gpu_from_moved(moved)

    def _cpu(self) -> None:
        first = self.lanes[CPU_FREE] + self.lanes[CPU_FIRST]
        self.require(
            0, (self.makespan, 1), (self.delay, -1), (self.used, -first), (slice(self.n), -self.cpu)
        )
        for i in range(self.n):
            self.require(0, (self.used, 1), (i, -1))

    def _contention(self) -> None:
        """See `cpu_finish`: the CPU is delayed by as much as the link costs it during all of its
        work, or, if that outlasts the link, while the link is busy."""
        slowed, first = self.lanes[CPU_SLOWED], self.lanes[CPU_FIRST]
        during, while_busy = slowed / ALONE, slowed / (ALONE + slowed)
        most = during * float(first + self.cpu.sum())
        self.require(
            0, (self.delay, 1), (self.used, -during * first), (slice(self.n), -during * self.cpu),
            (self.outlasts, most),
        )  # fmt: skip
        move = while_busy * self.lanes[TRANSFER]
        longest = while_busy * (self.lanes[LINK_FREE] - self.lanes[CPU_FREE])
        longest += move * len(self.moves)
        least = max(longest, 0.0)
        self.require(longest - least, (self.delay, 1), (self.moves, move), (self.outlasts, -least))

    def _order(self, late: int, moved: int, after: int) -> None:
        """The moved expert is `after` the late one if as many are moved up to it as the link can
        bring before that arrives, or more."""
        earlier = [j for j in self.moves if j <= moved]
        enough = -(-(int(self.ready[late]) - self.lanes[LINK_FREE]) // self.lanes[TRANSFER])
        big = len(earlier)
        self.require(big - enough + 1, (after, big), (moved, big), (late, big), (earlier, 1))
        self.require(-big, (earlier, -1), (after, -enough))
        self.require(-1, (after, -1), (late, -1))

    def _gpu_from_late(self, late: int) -> None:
        """The GPU ends no earlier than from a late expert's arrival on, with what arrives later."""
        rest = [k for k in self.late if self.ready[k] >= self.ready[late] and k != late]
        beside = {j: self.after[late, j] for j in self.moves if (late, j) in self.after}
        rest += [j for j in self.moves if j not in beside]
        least = self.ready[late] + self.gpu[late] + self.gpu[rest].sum()
        self.require(
            least, (self.makespan, 1), (rest, self.gpu[rest]),
            (list(beside.values()), -self.gpu[list(beside)]),
            (late, least + self.gpu[list(beside)].sum()),
        )  # fmt: skip

    def _gpu_from_moved(self, moved: int) -> None:
        """Everything moved up to it, then the GPU with everything that arrives from then on."""
        earlier = [j for j in self.moves if j < moved]
        rest = [j for j in self.moves if j > moved]
        beside = {k: self.after[k, moved] for k in self.late if (k, moved) in self.after}
        late = list(beside)
        transfers = self.lanes[LINK_FREE] + (len(earlier) + 1) * self.lanes[TRANSFER]
        least = transfers + self.gpu[moved] + self.gpu[rest].sum() + self.gpu[late].sum()
        self.require(
            least, (self.makespan, 1), (earlier, self.lanes[TRANSFER]), (rest, self.gpu[rest]),
            (late, self.gpu[late]), (list(beside.values()), self.gpu[late]), (moved, least),
        )  # fmt: skip
