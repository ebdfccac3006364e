"""Is `n-cpu-moe` what llama.cpp does with --n-cpu-moe: attention of all layers on the GPU, experts
of the first layers on the CPU, experts of prompts brought?"""

from __future__ import annotations

from moesaic.core.report import Timeline
from moesaic.core.routing import ExpertId
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.compose import Composition
from moesaic.policies.shape import Shape
from moesaic.policies.systems import load_system

SYSTEM = load_system("n-cpu-moe")


def test_the_last_layers_that_fit_are_placed_whole() -> None:
    composition = Composition(SYSTEM.policies, Shape(4, 3, 2), slots=7)
    expected = [ExpertId(layer, expert) for layer in (2, 3) for expert in range(3)]
    assert composition.placement() == expected
    assert composition.dense_on(expected) is None, "the GPU's, of every layer"
    assert not composition.decides


def simulated(phase: str) -> Timeline:
    settings = Settings(
        load_model("olmoe-1b-7b"), load_machine("a6000-xeon5220r"), phase=phase, cache_ratio=0.25,
        tokens=8, warmup=0, prompts=1, profile_tokens=8,
    ).with_system(SYSTEM)  # fmt: skip
    timeline = Timeline()
    simulate(settings, choose_workload(None, settings).source, timeline=timeline)
    return timeline


def test_in_decode_layers_are_on_one_device_and_nothing_moves() -> None:
    spans = simulated("decode").spans
    on_cpu = {span.layer for span in spans if span.lane == "cpu" and span.kind == "expert"}
    on_gpu = {span.layer for span in spans if span.lane == "gpu" and span.kind == "expert"}
    assert (on_cpu, on_gpu) == (set(range(12)), set(range(12, 16)))
    dense = {span.lane for span in spans if span.kind == "dense"}
    assert dense == {"gpu"}
    assert not [span for span in spans if span.lane == "pcie"]


def test_in_a_prompt_missing_experts_are_brought() -> None:
    spans = simulated("prefill").spans
    assert {span.lane for span in spans if span.kind == "expert"} == {"gpu"}
    assert {span.layer for span in spans if span.lane == "pcie"} == set(range(12))
