"""Is a simulated step with fewer experts per token that of a model with so many?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from made_up import exact_belief, make_brain, small_model, stated_physics
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.registry import Entry
from moesaic.core.routing import LayerRouting
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.result import Result
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.machines.sim import SimMachine
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.gate import gates
from moesaic.policies.gate.base import Gate, GateStep
from moesaic.policies.policy_set import PolicySet, with_options
from moesaic.workloads.block import join
from moesaic.workloads.source import MemoryTrace, TraceSource
from moesaic.workloads.steps import decode_steps
from moesaic.workloads.synthetic.calibration import default_calibration
from moesaic.workloads.synthetic.generate import TraceShape, synthesize

WIDE = load_model("olmoe-1b-7b")  # top-8
MACHINE = load_machine("a6000-xeon5220r")
PROFILE = 64
POLICIES = [("hybrid", "lru"), ("best-split", "lfu"), ("threshold", "belady")]


class Little(Gate):
    """Half of the experts for what is decoded; prompts use all."""

    def experts_per_token(self, step: GateStep) -> NDArray[np.int64] | None:
        if any(step.prompt):
            return None
        return np.full(sum(step.tokens), self.top_k // 2)


class Unsure(Little):
    reruns = True


@pytest.fixture(autouse=True)
def more_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    for gate in (Little, Unsure):
        entry = Entry(f"{__name__}:{gate.__name__}", "of this test")
        monkeypatch.setitem(gates._entries, gate.__name__.lower(), entry)


def some_trace() -> TraceSource:
    """Its first tokens, which decide the placement, use half of the experts."""
    calibration = default_calibration(WIDE.name, WIDE.num_experts)
    whole = synthesize(calibration, TraceShape.of(WIDE), 800, seed=3, ranks=16)
    block = join(list(whole.blocks()))
    used = np.where(np.arange(800) < PROFILE, WIDE.top_k // 2, WIDE.top_k).astype(np.uint16)
    return MemoryTrace(replace(whole.header, has_counts=True), [replace(block, counts=used)])


def as_narrow(source: TraceSource) -> TraceSource:
    """The same routing, of a model with half as many experts per token."""
    k = source.header.top_k // 2
    header = replace(source.header, top_k=k, has_weights=False, has_counts=False)
    blocks = [replace(block, weights=None, counts=None) for block in source.blocks()]
    return MemoryTrace(header, blocks)


def results(result: Result) -> tuple[object, ...]:
    return (
        result.latencies_s,
        result.hit_rate,
        result.bytes_moved,
        result.utilization,
        result.floor_parts_s,
    )


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("policies", POLICIES)
def test_half_of_the_experts_is_the_narrow_model(policies: tuple[str, str], batch: int) -> None:
    """To the nanosecond: these policies do not know of the ranks behind."""
    settings = Settings(
        WIDE,
        MACHINE,
        policies=PolicySet.of(
            schedule=policies[0], cache=policies[1], prefetch="none", gate="little"
        ),
        tokens=30,
        batch=batch,
        warmup=4,
        profile_tokens=PROFILE,
        checked=True,
    )
    source = some_trace()
    ragged = simulate(settings, source)
    whole = with_options(settings, {"gate": "full"})
    slim = replace(whole, model=replace(WIDE, top_k=WIDE.top_k // 2))
    assert results(ragged) == results(simulate(slim, as_narrow(source)))
    assert results(ragged) != results(simulate(whole, source))


def test_prompts_are_as_the_gate_wants_them() -> None:
    policies = PolicySet.of(gate="little")
    settings = Settings(WIDE, MACHINE, "prefill", policies, tokens=64, prompts=2)
    source, whole = some_trace(), with_options(settings, {"gate": "full"})
    assert results(simulate(settings, source)) == results(simulate(whole, source))


def test_a_step_may_be_run_again_with_more_experts() -> None:
    """The same tokens at another attempt: a pass of its own, with its own number."""
    model = small_model(3, 12, 4)
    physics = stated_physics(lambda t: 10, lambda t: 50 * t, transfer=100, model=model)
    machine = SimMachine(physics, slots=9)
    brain = make_brain(model, exact_belief(physics), 9)
    shape = TraceShape("small", 3, 12, 4)
    source = synthesize(default_calibration("small", 12), shape, 64, seed=1)
    seen: list[LayerRouting] = []

    route = machine.route

    def listen(layer: int) -> LayerRouting:
        seen.append(route(layer))
        return seen[-1]

    machine.route = listen  # type: ignore[method-assign]
    for step in decode_steps(source, batch=2, steps=2, wrap=True):
        for attempt in (step.cut(np.array([2, 1])), step):
            report = machine.step(attempt, brain)
            used = [len(set(attempt.layer(at).used().tolist())) for at in range(3)]
            assert [layer.active for layer in report.layers] == used
    assert [routing.step for routing in seen] == [n for n in range(4) for _ in range(3)]
    assert [routing.counts is None for routing in seen[::3]] == [False, True] * 2


def test_a_gate_that_asks_how_sure_the_model_was_needs_a_trace_that_knows() -> None:
    settings = Settings(WIDE, MACHINE, policies=PolicySet.of(gate="unsure"))
    with pytest.raises(ImpossibleSetting, match="gate 'unsure' runs tokens again"):
        simulate(settings, some_trace())
