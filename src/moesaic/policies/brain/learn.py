"""What a finished layer teaches: how long layers and the dense parts between them take, and how
often experts are missing. Compiled, over the buffer."""

from __future__ import annotations

from moesaic.policies.brain import fields as at
from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import Ints

_MEMORY, _FEW = 64, 8  # of averages, and what they must have seen to be believed
_FORGET = 2048  # layers


@compiled
def fill_report(s: Ints, start_ns: int, end_ns: int, active: int, hits: int) -> None:
    s[at.REPORT_START_NS], s[at.REPORT_END_NS] = start_ns, end_ns
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
    s[at.MOVES_BEFORE] = s[at.MOVES]
    s[at.LAYER_NS] = _drift(s[at.LAYER_NS], end - start)
    s[at.LAST_END_NS] = end
    missed = 1.0 - s[at.REPORT_HITS] / s[at.REPORT_ACTIVE]
    miss_rate = at.floats(s, at.MISS_RATE)
    miss_rate[0] += (missed - miss_rate[0]) / 32
    return 0


@compiled
def _learn_cost_of_moving(s: Ints, taken_ns: int) -> None:
    """From what the layer before took beyond its estimate, and the dense part after it: beside
    copies the CPU is slower than it was thought to be, and flags and activations wait for them.
    Where nothing moves for long that is forgotten: it may cost less by then, and nobody would
    see it."""
    if s[at.TOKENS] != s[at.STILL_TOKENS]:
        s[at.STILL_TOKENS] = s[at.TOKENS]
        s[at.STILLS] = s[at.MOVINGS] = s[at.MOVING_MORE_NS] = 0
    if s[at.MOVES_BEFORE] > 0:
        s[at.MOVINGS] = min(s[at.MOVINGS] + 1, _MEMORY)
        s[at.MOVING_NS] += (taken_ns - s[at.MOVING_NS]) // s[at.MOVINGS]
    elif s[at.NUM_FLIGHTS] == 0:
        s[at.STILLS] = min(s[at.STILLS] + 1, _MEMORY)
        s[at.STILL_NS] += (taken_ns - s[at.STILL_NS]) // s[at.STILLS]
        s[at.MOVING_MORE_NS] -= -(-s[at.MOVING_MORE_NS] // _FORGET)  # rounded up: down to 0
        return
    if s[at.STILLS] >= _FEW and s[at.MOVINGS] >= _FEW:
        s[at.MOVING_MORE_NS] = max(s[at.MOVING_NS] - s[at.STILL_NS], 0)


@compiled
def _drift(average: int, newest: int) -> int:
    """A running average with a memory of about eight."""
    return newest if average == 0 else (7 * average + newest) // 8
