"""What the CPU takes, learned from the layers it has computed. Compiled, over the buffer.

A belief about it is measured before a model runs, when others may have the cores. A brain that
takes the CPU for slower than it is moves experts that it had better left there. So a straight line
is fitted to the last layers: what the CPU took over what their experts should have taken it, beside
as many copies. The line's height at 0 is what the first expert of a layer costs more, its slope
scales the table. Steps of about as many tokens share a line; another one begins as believed."""

from __future__ import annotations

from moesaic.policies.brain import fields as at
from moesaic.policies.brain.state import State
from moesaic.policies.compiled import compiled
from moesaic.policies.schedule.base import KIND_ROW, SCRATCH_ROWS
from moesaic.policies.timelines import CPU_FREE, LINK_FREE, LOAD, ON_CPU, Ints, cpu_finish

MEMORY, FEW = 64, 8  # of averages over layers, and what they must have seen to be believed
_PRIOR = 0.01  # how much it weighs that the first one's is as believed, in squares of the mean
_LEAST, _MOST = 0.25, 4.0  # times as slow as believed
_OUTLIER = 4  # times as long as expected counts as so much: another process had the cores
WHOLE = 1000  # CPU_SLOPE of a table that is as believed
_CHANGED = 20  # thousandths of the slope that are worth another table
_X, _Y, _XX, _XY = range(4)  # in CPU_MEANS: believed and taken, and their products


def believe_cpu(state: State, first_ns: int) -> None:
    """Another belief, whose table stands in BELIEVED_CPU and COSTS. Not compiled: a model that runs
    on the CPU alone loads no compiled code."""
    words = state.words
    words[at.BELIEVED_FIRST_NS] = words[at.CPU_FIRST_NS] = first_ns
    words[at.CPU_SLOPE], words[at.CPU_SEEN] = WHOLE, 0
    state.of(at.CPU_MEANS)[:] = 0.0


@compiled
def learn_cpu(s: Ints) -> bool:
    """From the report in the buffer. Only where the schedule counts what things cost beside each
    other. True: from here on estimates are others."""
    if s[at.CPU_SLOWED_BY] == 0:
        return False
    _begin_class(s)
    taken, believed = s[at.REPORT_CPU_NS], _believed_ns(s)
    if taken <= 0 or believed <= 0:
        return False
    expected = s[at.CPU_FIRST_NS] + believed * s[at.CPU_SLOPE] // WHOLE
    x, y = float(believed), float(min(taken, _OUTLIER * max(expected, 1)))
    s[at.CPU_SEEN] = min(s[at.CPU_SEEN] + 1, MEMORY)
    means = at.floats(s, at.CPU_MEANS)
    for which, value in ((_X, x), (_Y, y), (_XX, x * x), (_XY, x * y)):
        means[which] += (value - means[which]) / s[at.CPU_SEEN]
    if s[at.CPU_SEEN] >= FEW:
        _use_line(s)
    return bool(s[at.CPU_SEEN] == FEW)


@compiled
def _begin_class(s: Ints) -> None:
    """Steps of twice as many tokens are others."""
    size, tokens = 0, s[at.TOKENS]
    while tokens > 0:
        size += 1
        tokens //= 2
    if size != s[at.CPU_CLASS]:
        s[at.CPU_CLASS] = size
        _forget(s)


@compiled
def _forget(s: Ints) -> None:
    """As believed."""
    s[at.CPU_SEEN] = 0
    at.floats(s, at.CPU_MEANS)[:] = 0.0
    s[at.CPU_FIRST_NS] = s[at.BELIEVED_FIRST_NS]
    _scale(s, WHOLE)


@compiled
def _believed_ns(s: Ints) -> int:
    """What the layer's experts on the CPU should take it beside the layer's copies, the first one's
    surcharge apart."""
    width = s[at.EXPERTS] + 4
    kind = at.ints(s, at.ASSIGNED).reshape(SCRATCH_ROWS, width)[KIND_ROW]
    loads = at.ints(s, at.TABLE).reshape(3, s[at.EXPERTS])[LOAD]
    believed = at.ints(s, at.BELIEVED_CPU)
    work = 0
    for i in range(s[at.ACTIVE]):
        work += believed[loads[i]] if kind[i] == ON_CPU else 0
    lanes = at.ints(s, at.LANES)
    start, copies = lanes[CPU_FREE], s[at.NUM_TRANSFERS] + s[at.MOVES]
    link_end = lanes[LINK_FREE] + copies * s[at.TRANSFER_NS]
    return int(cpu_finish(start, work, link_end, s[at.CPU_SLOWED_BY]) - start)


@compiled
def _use_line(s: Ints) -> None:
    means = at.floats(s, at.CPU_MEANS)
    x, y, prior = means[_X], means[_Y], _PRIOR * means[_X] * means[_X]
    across = max(means[_XX] - x * x, 0.0)
    usual = _bounded((y - s[at.BELIEVED_FIRST_NS]) / x)
    slope = _bounded((means[_XY] - x * y + prior * usual) / (across + prior))
    if slope * x > y:
        slope = _bounded(y / x)
    s[at.CPU_FIRST_NS] = int(max(y - slope * x, 0.0))
    thousandths = int(slope * WHOLE)
    if abs(thousandths - s[at.CPU_SLOPE]) >= _CHANGED:
        _scale(s, thousandths)


@compiled
def _bounded(slope: float) -> float:
    return min(max(slope, _LEAST), _MOST)


@compiled
def _scale(s: Ints, thousandths: int) -> None:
    if thousandths == s[at.CPU_SLOPE]:
        return
    s[at.CPU_SLOPE] = thousandths
    believed, count = at.ints(s, at.BELIEVED_CPU), s[at.COST_TOKENS]
    costs = at.ints(s, at.COSTS)
    for tokens in range(count):
        costs[count + tokens] = believed[tokens] * thousandths // WHOLE
