"""The loop, written once: for each layer route, plan, run, learn."""

from __future__ import annotations

from collections.abc import Callable

from moesaic.core.machine import Body
from moesaic.core.report import StepReport
from moesaic.policies.brain import Brain


def forward(
    body: Body,
    brain: Brain,
    layers: int,
    planning_ns: Callable[[int], int],
    lookahead_ns: int = 0,
) -> StepReport:
    """One step that the body has begun. `planning_ns(active experts)` is what deciding costs on
    this machine, `lookahead_ns` what the background takes to decide meanwhile."""
    for layer in range(layers):
        routing = body.route(layer)
        view = body.view(layer)
        plan = brain.plan(routing, view)
        active = sum(len(queue) for queue in plan.queues.values())
        report = body.run(plan, planning_ns(active), lookahead_ns)
        brain.learn(routing, report)
    return body.finish()
