"""What a copy in the background costs where the CPU is slower while the link is busy, and what it
must be worth. Compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.policies.compiled import compiled
from moesaic.policies.records import CPU_ROW, KIND_ROW, Costs, Decision, Inputs, Setup
from moesaic.policies.timelines import CPU_FIRST, CPU_FREE, ON_CPU, cpu_finish


@compiled
def cpu_work(costs: Costs, decision: Decision) -> int:
    """What the CPU's share of the layer takes it alone; 0 where contention does not count."""
    if costs.cpu_slowed_by == 0:
        return 0
    assigned = decision.assigned
    kind, cpu = assigned[KIND_ROW], assigned[CPU_ROW]
    work = 0
    for i in range(decision.active):
        work += cpu[i] if kind[i] == ON_CPU else 0
    return int(work + decision.lanes[CPU_FIRST]) if work > 0 else 0


@compiled
def longer_beside(costs: Costs, decision: Decision, work: int, link_end: int) -> int:
    """How much later this layer ends if the link stays busy until then."""
    if work == 0:
        return 0
    lanes, estimated = decision.lanes, decision.assigned[3, 3]
    end = cpu_finish(lanes[CPU_FREE], work, link_end, costs.cpu_slowed_by)
    return int(max(end - estimated, 0))


@compiled
def worth_less_cost(
    setup: Setup, costs: Costs, inputs: Inputs, values: NDArray[np.float64], expert: int, cost: int
) -> float:
    """What a victim must be worth less than, if moving this expert costs so many nanoseconds now.

    Values are shares of scores, and in the sum over a layer they stand for the experts that a token
    uses: that makes them expected uses in a step. A use of an expert that is not there costs the
    CPU's time for it, in each of the steps for which values are thought to hold."""
    uses = setup.top_k * inputs.tokens / max(values.sum(), 1e-300)  # of value 1, in a step
    saved = setup.cache_horizon * costs.tables[1, 1]
    return float((min(uses * values[expert], 1.0) - cost / max(saved, 1)) / uses)
