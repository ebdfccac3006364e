"""The real machine as one of the bodies: are its views and routings decided again plan for plan by
a brain that never met it, and can the simulator execute the plans it executed?"""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from recording import Listener, Moment, replayed

from made_up import make_brain, policy_combinations, small_machine, values_first
from moesaic.core.layer_plan import Move
from moesaic.core.legality import check
from moesaic.core.report import LayerReport, Span, Timeline
from moesaic.core.routing import ExpertId
from moesaic.core.step import Step
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.policies.belief import Belief
from real_runs import PROMPT, can_run, loaded, measured, running, say, settings

FAMILY = "qwen2-moe-normalized"  # shared experts, and three layers of routed ones
STEPS = 10
Names = tuple[str, str, str]
COMBINATIONS = values_first([names for names in policy_combinations() if can_run(names)])


@cache
def recorded(names: Names, accelerator: str = "emulated") -> tuple[Belief, list[Moment]]:
    """A prompt and some tokens for real, and what its brain believed when it began."""
    model = loaded(FAMILY)
    how = settings(*names, accelerator=accelerator)
    with running(model, how, slots(), belief=measured(FAMILY, accelerator)) as runner:
        belief = runner.brain.belief
        listener = Listener(runner.brain)
        runner._decider = lambda work: listener  # type: ignore[method-assign]
        say(runner, steps=STEPS)
    assert len(listener.moments) == (1 + STEPS) * model.spec.num_moe_layers
    return belief, listener.moments


def slots() -> int:
    return loaded(FAMILY).slots(0.25)


@pytest.mark.parametrize(("schedule", "cache", "prefetch"), COMBINATIONS)
def test_a_real_run_is_decided_again_plan_for_plan(
    schedule: str, cache: str, prefetch: str
) -> None:
    """By a brain as the simulator's: made of the same names, with that belief, and no body."""
    names = (schedule, cache, prefetch)
    belief, moments = recorded(names)
    fresh = make_brain(loaded(FAMILY).spec, belief, slots(), *names)
    assert replayed(fresh, moments) == [moment.plan for moment in moments]


@pytest.mark.parametrize(
    "names",
    [
        ("hybrid", "mrs", "impact"),
        ("best-split", "two-speed", "impact"),
        ("gpu-only", "lru", "none"),
    ],
    ids="+".join,
)
def test_a_run_beside_a_gpu_is_decided_again(names: Names) -> None:
    """The CPU plays the GPU."""
    belief, moments = recorded(names, "cuda")
    fresh = make_brain(loaded(FAMILY).spec, belief, slots(), *names)
    assert replayed(fresh, moments) == [moment.plan for moment in moments]


@pytest.mark.parametrize(("schedule", "cache", "prefetch"), COMBINATIONS)
def test_the_simulator_executes_the_plans_the_real_machine_executed(
    schedule: str, cache: str, prefetch: str
) -> None:
    _, moments = recorded((schedule, cache, prefetch))
    for moment in moments[: 2 * loaded(FAMILY).spec.num_moe_layers]:  # the prompt, and a token
        spans, report = simulated(moment)
        for device, queue in moment.plan.queues.items():
            assert [span.expert for span in spans if span.lane == device] == list(queue)
        loads = Counter(moment.routing.experts.ravel().tolist())
        assert {span.expert: span.tokens for span in spans} == loads
        assert report.active == moment.report.active == len(spans)
        assert report.hits + report.coming == moment.report.hits + moment.report.coming


def simulated(moment: Moment) -> tuple[list[Span], LayerReport]:
    """The same plan value on a simulated machine in the same state."""
    timeline, view, layer = Timeline(), moment.view, moment.plan.layer
    machine = SimMachine(Physics(small_machine(), loaded(FAMILY).spec), view.slots, timeline)
    machine.memory.place([ExpertId(*map(int, at)) for at in np.argwhere(view.resident)])
    tokens = moment.routing.num_tokens
    step = Step.prompt(tokens)
    machine.begin(step, lambda _: moment.routing)
    machine.offer(tuple(Move(f.layer, f.expert) for f in view.in_flight))
    routing = machine.route(layer)
    check(moment.plan, routing.loads(loaded(FAMILY).spec.num_experts), machine.view(layer))
    report = machine.run(moment.plan)
    return [span for span in timeline.spans if span.kind == "expert"], report


def test_what_is_compared_is_worth_comparing() -> None:
    """Real runs in which both devices compute, experts move and the gates give forecasts."""
    _, moments = recorded(("gpu-only", "lru", "next-layer"))
    assert any(moment.plan.transfers for moment in moments)
    assert any(moment.routing.forecasts for moment in moments)
    _, moments = recorded(("static-experts", "pinned", "none"))  # whatever they cost
    devices = {device for m in moments for device, queue in m.plan.queues.items() if queue}
    assert devices == {"gpu", "cpu"}
    assert len(PROMPT) == moments[0].routing.num_tokens
