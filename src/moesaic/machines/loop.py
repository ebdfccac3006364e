"""The loop over layers, written once: for each layer route, plan, run, learn."""

from __future__ import annotations

from moesaic.core.body import Decider, LayerBody, LayerwiseBody
from moesaic.core.layer_plan import Move
from moesaic.core.report import StepReport
from moesaic.core.routing import LayerRouting


def run_layers(body: LayerwiseBody, brain: Decider, layers: int) -> StepReport:
    """One step that the body has begun."""
    for layer in range(layers):
        serve_layer(body, brain, body.route(layer))
    return body.finish()


def serve_layer(body: LayerBody, brain: Decider, routing: LayerRouting) -> None:
    """One layer that was routed: plan, run, look ahead, learn."""
    body.start(brain.decide(routing, body.view(routing.layer)))
    body.offer(look_ahead(body, brain))
    brain.learn(routing, body.wait())


def look_ahead(body: LayerBody, brain: Decider) -> tuple[Move, ...]:
    """After a layer was started. Forecasts may cost a product with the gates of later layers: they
    are made only where something could be moved."""
    if not body.prefetches:
        return ()
    if not body.can_forecast:
        return brain.look_ahead()
    wanted = brain.wants_forecasts()
    return brain.look_ahead(body.forecasts(wanted) if wanted else ())
