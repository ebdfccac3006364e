"""The loop, written once: for each layer route, plan, run, learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from moesaic.core.body import Body, Decider
from moesaic.core.report import StepReport


class PlanningCost(NamedTuple):
    """What deciding costs on a machine in virtual time, by tokens and active experts."""

    decision_ns: Callable[[int, int], int]
    lookahead_ns: Callable[[int, int], int]


FREE = PlanningCost(lambda tokens, active: 0, lambda tokens, active: 0)


def forward(body: Body, brain: Decider, layers: int, cost: PlanningCost = FREE) -> StepReport:
    """One step that the body has begun."""
    for layer in range(layers):
        routing = body.route(layer)
        plan = brain.decide(routing, body.view(layer))
        decision_ns = lookahead_ns = 0
        if cost is not FREE:
            work = routing.num_tokens, sum(len(queue) for queue in plan.queues.values())
            decision_ns, lookahead_ns = cost.decision_ns(*work), cost.lookahead_ns(*work)
        body.start(plan, decision_ns)
        body.offer(brain.look_ahead(), lookahead_ns)
        brain.learn(routing, body.wait())
    return body.finish()
