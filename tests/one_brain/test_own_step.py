"""Can a body run its step itself? The runner gives it work and a brain, and asks nothing else."""

from __future__ import annotations

import torch

from closed_loop import assembled, chosen
from made_up import random_steps, small_machine, small_model
from moesaic.core.body import Decider
from moesaic.core.report import StepReport
from moesaic.machines.real.real_machine import ForwardPass, RealMachine
from moesaic.machines.sim.physics import Physics
from moesaic.machines.sim.planning_cost import PlanningCost
from real_runs import loaded, running, say, settings

FAMILY = "qwen2-moe-normalized"


class OwnStep:
    """Has a step and no layer-wise interface: it plans a layer of its machine in its own way,
    here deciding and looking ahead before anything is started."""

    def __init__(self, machine: RealMachine) -> None:
        self._machine = machine
        self.probe, self.probe_transfer = machine.probe, machine.probe_transfer
        self.probe_slowdown = machine.probe_slowdown
        self.capabilities = machine.capabilities
        self.steps = 0

    def step(self, work: ForwardPass, brain: Decider) -> StepReport:
        machine = self._machine
        machine.begin(work)
        for layer in range(machine.store.layers):
            routing = machine.route(layer)
            plan = brain.decide(routing, machine.view(layer))
            wanted = brain.wants_forecasts() if machine.can_forecast else 0
            background = brain.look_ahead(machine.forecasts(wanted) if wanted else ())
            machine.start(plan)
            machine.offer(background)
            brain.learn(routing, machine.wait())
        self.steps += 1
        return machine.finish()


def test_a_runner_lets_a_body_run_its_own_step() -> None:
    model, how = loaded(FAMILY), settings("best-split", "two-speed", "impact")
    with running(model, how, model.slots(0.25)) as runner:
        expected = say(runner, steps=4)
        runner.free_slot(0)
        runner.body = body = OwnStep(runner.machine)
        found = say(runner, steps=4)
    assert body.steps == 5
    assert found.text == expected.text
    assert torch.allclose(found.logits, expected.logits, atol=1e-4)


def test_planning_is_charged_by_the_machine_that_has_a_clock_for_it() -> None:
    """By tokens and active experts of the layer: 100 per expert and 7 per token, 3 layers."""
    model = small_model(layers=3, experts=8, top_k=2)
    steps = random_steps(5, 1, model, tokens=4)
    machine, brain = assembled(Physics(small_machine(), model), 6, chosen(), steps)
    machine.planning = PlanningCost(
        lambda tokens, active: 7 * tokens + 100 * active, lambda tokens, active: 0
    )
    report = machine.step(steps[0], brain)
    active = sum(layer.active for layer in report.layers)
    assert machine.planning_ns == 3 * 7 * 4 + 100 * active
