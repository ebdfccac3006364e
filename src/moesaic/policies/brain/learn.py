"""What a finished layer teaches: how long layers and the dense parts between them take, and how
often experts are missing. Compiled."""

from __future__ import annotations

from moesaic.policies.brain.cpu_times import FEW, MEMORY, learn_cpu
from moesaic.policies.compiled import compiled
from moesaic.policies.records import Inputs, Learned, Report, State

_FORGET = 2048  # layers


@compiled
def fill_report(
    report: Report, start_ns: int, end_ns: int, active: int, hits: int, cpu_ns: int
) -> None:
    report.start_ns, report.end_ns, report.cpu_ns = start_ns, end_ns, cpu_ns
    report.active, report.hits = active, hits


@compiled
def learn(s: State) -> int:
    """Learn from the report of the layer decided last; return 0."""
    start, end = s.report.start_ns, s.report.end_ns
    if s.learned.last_end_ns >= 0 and s.inputs.layer > 0:
        s.learned.gap_ns = _drift(s.learned.gap_ns, start - s.learned.last_end_ns)
        _learn_cost_of_moving(
            s.inputs, s.learned, s.learned.extra_ns + start - s.learned.last_end_ns
        )
    estimated = s.decision.assigned[3, 3]
    s.learned.extra_ns = end - start - estimated - s.ahead.moves_cost_ns
    s.learned.moves_before, s.learned.demanded_before = s.ahead.moves, s.decision.num_transfers
    s.learned.layer_ns = _drift(s.learned.layer_ns, end - start)
    s.learned.last_end_ns = end
    missed = 1.0 - s.report.hits / s.report.active
    s.learned.miss_rate += (missed - s.learned.miss_rate) / 32
    if learn_cpu(s):  # what layers took beyond their estimates so far says nothing
        _forget_moving(s.learned)
    return 0


@compiled
def _learn_cost_of_moving(inputs: Inputs, learned: Learned, taken_ns: int) -> None:
    """Learn from what the layer before took beyond its estimate, and the dense part after it:
    beside copies the CPU is slower than it was thought to be, and flags and activations wait for
    them; and what a layer demands begins later than the link could. Where nothing moves for long
    that is forgotten: it may cost less by then, and that would not be seen."""
    if inputs.tokens != learned.still_tokens:
        learned.still_tokens = inputs.tokens
        _forget_moving(learned)
    if learned.moves_before > 0:
        learned.movings = min(learned.movings + 1, MEMORY)
        learned.moving_ns = _average(learned.moving_ns, taken_ns, learned.movings)
    elif inputs.num_flights == 0 and learned.demanded_before > 0:
        learned.demands = min(learned.demands + 1, MEMORY)
        learned.demand_ns = _average(learned.demand_ns, taken_ns, learned.demands)
    elif inputs.num_flights == 0:
        learned.stills = min(learned.stills + 1, MEMORY)
        learned.still_ns = _average(learned.still_ns, taken_ns, learned.stills)
        learned.moving_more_ns -= -(-learned.moving_more_ns // _FORGET)  # rounded up: down to 0
        learned.demand_more_ns -= -(-learned.demand_more_ns // _FORGET)
        return
    if learned.stills >= FEW and learned.movings >= FEW and learned.moves_before > 0:
        learned.moving_more_ns = max(learned.moving_ns - learned.still_ns, 0)
    if learned.stills >= FEW and learned.demands >= FEW and learned.demanded_before > 0:
        learned.demand_more_ns = max(learned.demand_ns - learned.still_ns, 0)


@compiled
def _forget_moving(learned: Learned) -> None:
    learned.stills = learned.movings = learned.demands = 0
    learned.moving_more_ns = learned.demand_more_ns = 0


@compiled
def _average(average: int, newest: int, count: int) -> int:
    """The average of `count` values, the newest included."""
    return average + (newest - average) // count


@compiled
def _drift(average: int, newest: int) -> int:
    """A running average with a memory of about eight."""
    return newest if average == 0 else (7 * average + newest) // 8
