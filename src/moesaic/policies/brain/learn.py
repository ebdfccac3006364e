"""What a finished layer teaches: how long layers and the dense parts between them take, and how
often experts are missing. Compiled, over the buffer."""

from __future__ import annotations

from moesaic.policies.brain import fields as at
from moesaic.policies.brain.cpu_times import FEW, MEMORY, learn_cpu
from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import Ints

_FORGET = 2048  # layers


@compiled
def fill_report(s: Ints, start_ns: int, end_ns: int, active: int, hits: int, cpu_ns: int) -> None:
    s[at.REPORT_START_NS], s[at.REPORT_END_NS], s[at.REPORT_CPU_NS] = start_ns, end_ns, cpu_ns
    s[at.REPORT_ACTIVE], s[at.REPORT_HITS] = active, hits


@compiled
def learn(s: Ints) -> int:
    """From the report in the buffer, of the layer decided last; returns 0."""
    start, end = s[at.REPORT_START_NS], s[at.REPORT_END_NS]
    if s[at.LAST_END_NS] >= 0 and s[at.LAYER] > 0:
        s[at.GAP_NS] = _drift(s[at.GAP_NS], start - s[at.LAST_END_NS])
        _learn_cost_of_moving(s, s[at.EXTRA_NS] + start - s[at.LAST_END_NS])
    estimated = at.ints(s, at.ASSIGNED)[3 * (s[at.EXPERTS] + 4) + 3]
    s[at.EXTRA_NS] = end - start - estimated - s[at.MOVES_COST_NS]
    s[at.MOVES_BEFORE], s[at.DEMANDED_BEFORE] = s[at.MOVES], s[at.NUM_TRANSFERS]
    s[at.LAYER_NS] = _drift(s[at.LAYER_NS], end - start)
    s[at.LAST_END_NS] = end
    missed = 1.0 - s[at.REPORT_HITS] / s[at.REPORT_ACTIVE]
    miss_rate = at.floats(s, at.MISS_RATE)
    miss_rate[0] += (missed - miss_rate[0]) / 32
    if learn_cpu(s):  # what layers took beyond their estimates so far says nothing
        _forget_moving(s)
    return 0


@compiled
def _learn_cost_of_moving(s: Ints, taken_ns: int) -> None:
    """From what the layer before took beyond its estimate, and the dense part after it: beside
    copies the CPU is slower than it was thought to be, and flags and activations wait for them;
    and what a layer demands begins later than the link could. Where nothing moves for long that is
    forgotten: it may cost less by then, and that would not be seen."""
    if s[at.TOKENS] != s[at.STILL_TOKENS]:
        s[at.STILL_TOKENS] = s[at.TOKENS]
        _forget_moving(s)
    if s[at.MOVES_BEFORE] > 0:
        _average(s, at.MOVING_NS, at.MOVINGS, taken_ns)
    elif s[at.NUM_FLIGHTS] == 0 and s[at.DEMANDED_BEFORE] > 0:
        _average(s, at.DEMAND_NS, at.DEMANDS, taken_ns)
    elif s[at.NUM_FLIGHTS] == 0:
        _average(s, at.STILL_NS, at.STILLS, taken_ns)
        s[at.MOVING_MORE_NS] -= -(-s[at.MOVING_MORE_NS] // _FORGET)  # rounded up: down to 0
        s[at.DEMAND_MORE_NS] -= -(-s[at.DEMAND_MORE_NS] // _FORGET)
        return
    if s[at.STILLS] >= FEW and s[at.MOVINGS] >= FEW and s[at.MOVES_BEFORE] > 0:
        s[at.MOVING_MORE_NS] = max(s[at.MOVING_NS] - s[at.STILL_NS], 0)
    if s[at.STILLS] >= FEW and s[at.DEMANDS] >= FEW and s[at.DEMANDED_BEFORE] > 0:
        s[at.DEMAND_MORE_NS] = max(s[at.DEMAND_NS] - s[at.STILL_NS], 0)


@compiled
def _forget_moving(s: Ints) -> None:
    s[at.STILLS] = s[at.MOVINGS] = s[at.DEMANDS] = 0
    s[at.MOVING_MORE_NS] = s[at.DEMAND_MORE_NS] = 0


@compiled
def _average(s: Ints, average: int, count: int, newest: int) -> None:
    s[count] = min(s[count] + 1, MEMORY)
    s[average] += (newest - s[average]) // s[count]


@compiled
def _drift(average: int, newest: int) -> int:
    """A running average with a memory of about eight."""
    return newest if average == 0 else (7 * average + newest) // 8
