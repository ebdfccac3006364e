"""Who runs a step, and does a body with a clock of its own charge planning?"""

from __future__ import annotations

from typing import Any

import torch

from closed_loop import assembled, chosen
from made_up import random_steps, small_machine, small_model
from moesaic.core.body import Decider
from moesaic.machines.real.executor import Executor
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.machines.sim.physics import Physics
from moesaic.machines.sim.planning_cost import PlanningCost
from real_runs import loaded, running, say, settings

FAMILY = "qwen2-moe-normalized"


class Every:
    """An executor in front of another one, which runs every second pass itself."""

    def __init__(self, layers: Executor) -> None:
        self._layers, self._asked = layers, 0
        self.passes = 0

    def refuses(self, work: ForwardPass, brain: Decider) -> str | None:
        self._asked += 1
        return "it is not its turn" if self._asked % 2 else None

    def submit(self, number: int, work: ForwardPass, brain: Decider) -> None:
        self.passes += 1
        self._layers.submit(number, work, brain)

    def leave(self) -> None:
        """The slots stay where they are."""

    def close(self) -> None:
        """The other executor is not closed with it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layers, name)


def test_the_first_executor_that_does_not_refuse_runs_a_pass() -> None:
    model, how = loaded(FAMILY), settings("best-split", "two-speed", "impact")
    with running(model, how, model.slots(0.25)) as runner:
        expected = say(runner, steps=4)
        runner.free_slot(0)
        every = Every(runner.machine.layerwise)
        runner.machine.add(every)
        found = say(runner, steps=4)
    assert every.passes == 2
    assert found.text == expected.text
    assert torch.allclose(found.logits, expected.logits, atol=1e-4)


def test_a_choice_is_not_kept_for_another_time() -> None:
    """The same pass again, when its executor is gone."""
    model, how = loaded(FAMILY), settings("best-split", "two-speed", "impact")
    with running(model, how, model.slots(0.25)) as runner:
        every = Every(runner.machine.layerwise)
        runner.machine.add(every)
        work = ForwardPass([Piece(0, [1, 2, 3], first=0)])
        for _ in range(2):  # the second time, the executor in front would run it
            assert runner.refuses(work) is None
        runner.machine.use_only_layerwise("it is gone")
        runner.step(work)
        assert runner.machine.last is runner.machine.layerwise
    assert every.passes == 0


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
