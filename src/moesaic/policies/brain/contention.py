"""What a copy in the background costs where the CPU is slower while the link is busy, and what it
must be worth. Compiled, over the buffer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.brain import fields as at
from moesaic.policies.compiled import compiled
from moesaic.policies.schedule.base import CPU_ROW, KIND_ROW, SCRATCH_ROWS
from moesaic.policies.timelines import CPU_FIRST, CPU_FREE, ON_CPU, Ints, cpu_finish


@compiled
def cpu_work(s: Ints) -> int:
    """What the CPU's share of the layer takes it alone; 0 where contention does not count."""
    if s[at.CPU_SLOWED_BY] == 0:
        return 0
    assigned = at.ints(s, at.ASSIGNED).reshape(SCRATCH_ROWS, s[at.EXPERTS] + 4)
    kind, cpu = assigned[KIND_ROW], assigned[CPU_ROW]
    work = 0
    for i in range(s[at.ACTIVE]):
        work += cpu[i] if kind[i] == ON_CPU else 0
    return int(work + at.ints(s, at.LANES)[CPU_FIRST]) if work > 0 else 0


@compiled
def longer_beside(s: Ints, work: int, link_end: int) -> int:
    """How much later this layer ends if the link stays busy until then."""
    if work == 0:
        return 0
    lanes, estimated = at.ints(s, at.LANES), at.ints(s, at.ASSIGNED)[3 * (s[at.EXPERTS] + 4) + 3]
    end = cpu_finish(lanes[CPU_FREE], work, link_end, s[at.CPU_SLOWED_BY])
    return int(max(end - estimated, 0))


@compiled
def worth_less_cost(s: Ints, values: NDArray[np.float64], expert: int, cost: int) -> float:
    """What a victim must be worth less than, if moving this expert costs so many nanoseconds now.

    Values are shares of scores, and in the sum over a layer they stand for the experts that a token
    uses: that makes them expected uses in a step. A use of an expert that is not there costs the
    CPU's time for it, in each of the steps for which values are thought to hold."""
    uses = s[at.TOP_K] * s[at.TOKENS] / max(values.sum(), 1e-300)  # of value 1, in a step
    saved = s[at.CACHE_HORIZON] * at.ints(s, at.COSTS)[s[at.COST_TOKENS] + 1]
    return float((min(uses * values[expert], 1.0) - cost / max(saved, 1)) / uses)
