"""The best split between CPU, GPU and link.

HybriMoE's three priority rules leave two numbers open: how many missing experts (the highest loads)
move to the GPU, and how many cached ones (the lowest loads) the CPU takes over. HybriMoE finds
one such pair by filling timelines greedily. Here every number of moves is tried with every
number of takeovers that could still help; greedy's pair is among them. Experts under way are
waited for together or computed on the CPU together, whichever ends earlier.

That is how expected layers are valued. For the layer that is decided, the split is then improved
(improve.py). With up to ten experts every assignment is tried: the result is the optimum. With up
to 32, splits in the opposite orders are tried too, and pairs of experts exchanged: on random layers
of 11 to 14 with busy lanes and costs of any kind that ends 0.06 % above the optimum on average and
4.3 % at worst (`python -m benchmarks.schedule_quality`). With more, the split is left as it is."""

from __future__ import annotations

from moesaic.policies.compiled import compiled
from moesaic.policies.schedule.base import CompiledSchedule
from moesaic.policies.schedule.improve import improve
from moesaic.policies.schedule.splits import IN_ORDER, best_split
from moesaic.policies.timelines import Ints


@compiled
def split_in_order(
    kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, spare: Ints
) -> int:
    """The split alone, by which layers are valued that are only expected."""
    return best_split(kind, ready, gpu, cpu, lanes, n, IN_ORDER, spare)


@compiled
def improved_split(
    kind: Ints, ready: Ints, gpu: Ints, cpu: Ints, lanes: Ints, n: int, spare: Ints
) -> int:
    best = best_split(kind, ready, gpu, cpu, lanes, n, IN_ORDER, spare)
    return improve(kind, ready, gpu, cpu, lanes, n, best, spare)


class BestSplit(CompiledSchedule):
    rule = staticmethod(improved_split)
    expected_rule = staticmethod(split_in_order)
    sees_contention = True
