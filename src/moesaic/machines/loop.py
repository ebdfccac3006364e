"""The loop over layers, written once: for each layer route, plan, run, learn."""

from __future__ import annotations

from moesaic.core.body import Decider, LayerwiseBody
from moesaic.core.report import StepReport


def run_layers(body: LayerwiseBody, brain: Decider, layers: int) -> StepReport:
    """One step that the body has begun."""
    for layer in range(layers):
        routing = body.route(layer)
        body.start(brain.decide(routing, body.view(layer)))
        body.offer(brain.look_ahead())
        brain.learn(routing, body.wait())
    return body.finish()
