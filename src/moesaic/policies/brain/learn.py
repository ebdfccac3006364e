"""What a finished layer teaches: how long layers and the dense parts between them take, and how
often experts are missing. Compiled, over the buffer."""

from __future__ import annotations

from moesaic.policies.brain import fields as at
from moesaic.policies.compiled import compiled
from moesaic.policies.timelines import Ints


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
    s[at.LAYER_NS] = _drift(s[at.LAYER_NS], end - start)
    s[at.LAST_END_NS] = end
    missed = 1.0 - s[at.REPORT_HITS] / s[at.REPORT_ACTIVE]
    miss_rate = at.floats(s, at.MISS_RATE)
    miss_rate[0] += (missed - miss_rate[0]) / 32
    return 0


@compiled
def _drift(average: int, newest: int) -> int:
    """A running average with a memory of about eight."""
    return newest if average == 0 else (7 * average + newest) // 8
