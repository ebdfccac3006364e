"""Between the router and the start of a plan, does a view stay true while copies arrive?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from small_store import HandLink

from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.offloading import CPU, GPU
from moesaic.core.report import LayerReport
from moesaic.core.routing import Forecast, LayerRouting
from moesaic.core.view import View
from moesaic.engine.runner import Runner
from moesaic.machines.layerwise.lane_layers import LaneLayers
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.policies.brain import Brain
from real_runs import PROMPT, loaded, running, settings, truth

NAME = "mixtral-every-expert"  # every prefetched expert is used
EMPTY = settings("best-split", "two-speed", "impact", fill="empty")
BROUGHT, LATE = 2, 3  # experts of the second layer: one under way when it is routed, one forgotten


class Script(Brain):
    """Brings an expert of the second layer during the first; lets it arrive on demand."""

    schedule: Any = None  # a runner may set it; nothing is scheduled by it

    def __init__(self, runner: Runner, link: HandLink, arrives: str) -> None:
        assert isinstance(runner.machine.layerwise, LaneLayers)
        self.machine, self.link, self.arrives = runner.machine.layerwise, link, arrives
        self.views: list[View] = []
        self.reports: list[LayerReport] = []

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan:
        layer, experts = routing.layer, range(routing.experts.shape[1])
        self.views.append(view.copy())
        on_gpu = [BROUGHT] if layer == 1 else []
        on_cpu = [e for e in experts if e not in on_gpu]
        if layer == 1 and self.arrives == "before the plan starts":
            self.link.arrive()
            again = self.machine.view(layer)
            assert (view.resident == self.views[-1].resident).all()
            assert [flight[:2] for flight in again.in_flight] == [(1, BROUGHT)]
            assert (again.resident == view.resident).all()
            assert again.occupied == view.occupied == 1
        return LayerPlan(layer, {GPU: tuple(on_gpu), CPU: tuple(on_cpu)})

    def wants_forecasts(self) -> int:
        return 0

    def look_ahead(
        self, forecasts: Sequence[Forecast] = (), body_forecasts: bool = True
    ) -> tuple[Move, ...]:
        layer = len(self.views) - 1
        if layer == 1 and self.arrives == "while the layer runs":
            self.link.arrive()
        return (Move(1, BROUGHT), Move(1, LATE)) if layer == 0 else ()

    def learn(self, routing: LayerRouting, report: LayerReport) -> None:
        self.reports.append(report)
        if routing.layer == 0:
            self.link.begin()


@pytest.mark.parametrize("arrives", ["before the plan starts", "while the layer runs"])
def test_what_is_under_way_stays_under_way_until_the_plan_has_started(arrives: str) -> None:
    model = loaded(NAME)
    with running(model, EMPTY, slots=4) as runner:
        layers = runner.machine.layerwise
        assert isinstance(layers, LaneLayers)
        layers.accelerator.link.close()
        link = HandLink()
        layers.accelerator.link = link  # type: ignore[assignment]
        script = Script(runner, link, arrives)
        runner.brain = script
        logits = runner.step(ForwardPass([Piece(0, PROMPT, all_logits=True)]))
        residency = runner.machine.residency
    assert (logits - truth(NAME).logits[: len(PROMPT)]).abs().max() < 1e-4
    first, second, third = script.views
    assert not first.in_flight
    assert [flight[:2] for flight in second.in_flight] == [(1, BROUGHT)]
    assert second.in_flight[0].remaining_ns > 0
    assert second.pcie_busy_ns > 0
    assert not second.resident.any(), "it has not arrived for this decision"
    assert second.held.tolist() == [0, 1, 0]
    assert not third.in_flight
    assert third.resident[1, BROUGHT]
    assert residency.resident.sum() == 1, "what had not begun was forgotten"
    assert [report.coming for report in script.reports] == [0, 1, 0]
    assert [report.hits for report in script.reports] == [0, 0, 0]
