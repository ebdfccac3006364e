"""A prompt piece mixed with decoding sequences: does it cost what the formulas say, and does the
brain plan its actual loads?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from closed_loop import assembled, chosen
from made_up import RandomStep, random_steps, small_machine, small_model
from moesaic.core.layer_plan import LayerPlan
from moesaic.core.offloading import CPU, GPU
from moesaic.core.report import LayerReport
from moesaic.core.routing import Forecast, LayerRouting
from moesaic.core.step import Step
from moesaic.core.view import View
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.policies.brain import Brain

MODEL = small_model(layers=2, experts=8, top_k=2)
PHYSICS = Physics(small_machine(), MODEL)
PIECE, CONTEXTS = 20, (300, 7, 0)
MIXED = Step.of([(PIECE, 40), *((1, context) for context in CONTEXTS)])


def mixed(seed: int = 0) -> RandomStep:
    (random,) = random_steps(seed, 1, MODEL, tokens=MIXED.tokens)
    return RandomStep(random.routings, MIXED)


def test_attention_reads_and_multiplies_what_each_sequence_has() -> None:
    """Weights once; keys and values of 60, 301, 8 and 1 tokens; products for every pair."""
    params = MODEL.attention_params + MODEL.router_params
    kv = (PIECE + 40) + sum(context + 1 for context in CONTEXTS)
    size = 2 * params + 2 * kv * MODEL.kv_values_per_token
    pairs = sum(40 + at for at in range(1, PIECE + 1)) + sum(c + 1 for c in CONTEXTS)
    flops = 2 * params * (PIECE + 3) + pairs * MODEL.attention_flops_per_pair
    for device in (GPU, CPU):
        spec = small_machine().gpu if device == GPU else small_machine().cpu
        reading = size / spec.effective_bandwidth_gb_s
        multiplying = flops / spec.effective_tflops("bf16") / 1000
        fixed = 5000 if device == GPU else 0
        assert PHYSICS.attention_ns(device, MIXED) == fixed + round(max(reading, multiplying))


def test_a_mixed_step_is_the_sum_of_its_parts() -> None:
    """Everything routed on the CPU; the head sees one position per sequence."""
    step, machine = mixed(), SimMachine(PHYSICS, 0)
    report = machine.step(step, OnCpu())
    expected = PHYSICS.head_ns(4)
    for layer, routing in enumerate(step.routings):
        loads = routing.loads(MODEL.num_experts)
        experts = sum(PHYSICS.expert_ns(CPU, int(n)) for n in loads if n)
        shared = PHYSICS.shared_ns(GPU, MIXED.tokens)
        expected += PHYSICS.attention_ns(GPU, MIXED)
        expected += max(PHYSICS.cpu_first_ns + experts, shared)
        before = MODEL.moe_layers[layer] - (MODEL.moe_layers[layer - 1] if layer else -1) - 1
        expected += before * PHYSICS.dense_layer_ns(GPU, MIXED)
    assert report.latency_ns == expected
    assert report.tokens == PIECE + 3


class OnCpu:
    """Lets the CPU compute everything."""

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan:
        return LayerPlan(routing.layer, {CPU: tuple(np.unique(routing.experts).tolist())})

    def wants_forecasts(self) -> int:
        return 0

    def look_ahead(self, forecasts: Sequence[Forecast] = ()) -> tuple[()]:
        return ()

    def learn(self, routing: LayerRouting, report: LayerReport) -> None:
        pass


class Noting:
    """Passes everything on to a brain, and notes what it believes each layer will take beyond
    what the GPU has still to do."""

    def __init__(self, brain: Brain) -> None:
        self._brain, self.look_ahead, self.learn = brain, brain.look_ahead, brain.learn
        self.wants_forecasts = brain.wants_forecasts
        self.believed: list[int] = []

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan:
        plan = self._brain.decide(routing, view)
        self.believed.append(plan.believed_ns - view.gpu_busy_ns)
        return plan


def test_a_layer_is_planned_with_the_loads_of_the_whole_mixture() -> None:
    """All experts on the GPU: what is believed is the sum of what each costs with the tokens that
    prompt and decoding sequences bring it together."""
    step, slots = mixed(1), MODEL.num_expert_blocks
    machine, brain = assembled(PHYSICS, slots, chosen("gpu-only", "lru", "none"), [step])
    noting = Noting(brain)
    machine.step(step, noting)
    costs, loads = brain.belief.tables[0], [r.loads(MODEL.num_experts) for r in step.routings]
    assert all(row.sum() == MIXED.tokens * MODEL.top_k for row in loads)
    assert noting.believed == [int(costs[row].sum()) for row in loads]
