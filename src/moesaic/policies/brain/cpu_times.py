"""What the CPU takes, learned from the layers it has computed. Compiled.

A belief about it is measured before a model runs, when others may have the cores. A brain that
takes the CPU for slower than it is moves experts that it had better left there. So a straight line
is fitted to the last layers: what the CPU took over what their experts should have taken it, beside
as many copies. The line's height at 0 is what the first expert of a layer costs more, its slope
scales the table. Steps of about as many tokens share a line; another one begins as believed."""

from __future__ import annotations

from moesaic.policies.compiled import compiled
from moesaic.policies.records import KIND_ROW, Ahead, Costs, Decision, Inputs, State
from moesaic.policies.timelines import CPU_FREE, LINK_FREE, LOAD, ON_CPU, cpu_finish

MEMORY, FEW = 64, 8  # of averages over layers, and what they must have seen to be believed
_PRIOR = 0.01  # how much it weighs that the first one's is as believed, in squares of the mean
_LEAST, _MOST = 0.25, 4.0  # times as slow as believed
_OUTLIER = 4  # times as long as expected counts as so much: another process had the cores
WHOLE = 1000  # `cpu_slope` of a table that is as believed
_CHANGED = 20  # thousandths of the slope that are worth another table
_X, _Y, _XX, _XY = range(4)  # in `cpu_means`: believed and taken, and their products


def believe_cpu(costs: Costs, first_ns: int) -> None:
    """Another belief, whose table stands in the record. Not compiled: a model that runs on the CPU
    alone loads no compiled code."""
    costs.believed_first_ns = costs.cpu_first_ns = first_ns
    costs.cpu_slope, costs.cpu_seen = WHOLE, 0
    costs.cpu_means[:] = 0.0


@compiled
def learn_cpu(s: State) -> bool:
    """Learn from the report. Only where the schedule counts what things cost beside each other.
    True: from here on estimates are others."""
    if s.costs.cpu_slowed_by == 0:
        return False
    _begin_class(s.costs, s.inputs)
    taken, believed = s.report.cpu_ns, _believed_ns(s.costs, s.decision, s.ahead)
    if taken <= 0 or believed <= 0:
        return False
    expected = s.costs.cpu_first_ns + believed * s.costs.cpu_slope // WHOLE
    x, y = float(believed), float(min(taken, _OUTLIER * max(expected, 1)))
    s.costs.cpu_seen = min(s.costs.cpu_seen + 1, MEMORY)
    means = s.costs.cpu_means
    for which, value in ((_X, x), (_Y, y), (_XX, x * x), (_XY, x * y)):
        means[which] += (value - means[which]) / s.costs.cpu_seen
    if s.costs.cpu_seen >= FEW:
        _use_line(s.costs)
    return bool(s.costs.cpu_seen == FEW)


@compiled
def _begin_class(costs: Costs, inputs: Inputs) -> None:
    """Steps of twice as many tokens are others."""
    size, tokens = 0, inputs.tokens
    while tokens > 0:
        size += 1
        tokens //= 2
    if size != costs.cpu_class:
        costs.cpu_class = size
        _forget(costs)


@compiled
def _forget(costs: Costs) -> None:
    """Set the learned costs back to the believed ones."""
    costs.cpu_seen = 0
    costs.cpu_means[:] = 0.0
    costs.cpu_first_ns = costs.believed_first_ns
    _scale(costs, WHOLE)


@compiled
def _believed_ns(costs: Costs, decision: Decision, ahead: Ahead) -> int:
    """What the layer's experts on the CPU should take it beside the layer's copies, the first one's
    surcharge apart."""
    kind = decision.assigned[KIND_ROW]
    loads = decision.table[LOAD]
    believed = costs.believed_cpu
    work = 0
    for i in range(decision.active):
        work += believed[loads[i]] if kind[i] == ON_CPU else 0
    lanes = decision.lanes
    start, copies = lanes[CPU_FREE], decision.num_transfers + ahead.moves
    link_end = lanes[LINK_FREE] + copies * costs.transfer_ns
    return int(cpu_finish(start, work, link_end, costs.cpu_slowed_by) - start)


@compiled
def _use_line(costs: Costs) -> None:
    means = costs.cpu_means
    x, y, prior = means[_X], means[_Y], _PRIOR * means[_X] * means[_X]
    across = max(means[_XX] - x * x, 0.0)
    usual = _bounded((y - costs.believed_first_ns) / x)
    slope = _bounded((means[_XY] - x * y + prior * usual) / (across + prior))
    if slope * x > y:
        slope = _bounded(y / x)
    costs.cpu_first_ns = int(max(y - slope * x, 0.0))
    thousandths = int(slope * WHOLE)
    if abs(thousandths - costs.cpu_slope) >= _CHANGED:
        _scale(costs, thousandths)


@compiled
def _bounded(slope: float) -> float:
    return min(max(slope, _LEAST), _MOST)


@compiled
def _scale(costs: Costs, thousandths: int) -> None:
    if thousandths == costs.cpu_slope:
        return
    costs.cpu_slope = thousandths
    believed, taken = costs.believed_cpu, costs.tables[1]
    for tokens in range(len(taken)):
        taken[tokens] = believed[tokens] * thousandths // WHOLE
