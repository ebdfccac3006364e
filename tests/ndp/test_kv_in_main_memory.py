"""Where the KV cache is in main memory: does its traffic take the time its bytes take, and from
whom?

The invented machine's PCIe brings 2 GB/s, its CPU streams 6: an expert (60 kB) takes 30 and 10 us.
A layer's keys and values are 100 values of 2 bytes per token: 60 kB at a context of 300."""

from __future__ import annotations

import pytest

from dimm_machines import dimm_machine
from made_up import routing_of, small_machine, small_model
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.report import Timeline
from moesaic.core.step import Step
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics

MODEL = small_model(layers=2, experts=8, top_k=8)
CONTEXT = 300


def machine_of(spec: MachineSpec, kv_cache: str) -> SimMachine:
    machine = SimMachine(Physics(spec, MODEL), 4, Timeline(), kv_cache=kv_cache)
    machine.fill_main_memory()
    return machine


def run_layers(machine: SimMachine, *plans: LayerPlan) -> list[int]:
    """When each layer's attention was over, and the last layer; from the start."""
    experts = list(range(8))
    machine.begin(Step.decode(1, CONTEXT), lambda layer: routing_of(layer, [experts]))
    start, found = machine.clock.now, []
    for plan in plans:
        machine.route(plan.layer)
        found.append(machine.clock.now - start)
        machine.run(plan)
    return [*found, machine.clock.now - start]


def spans(machine: SimMachine, kind: str) -> list[tuple[str, int]]:
    return [(s.lane, s.end_ns - s.start_ns) for s in machine.timeline.spans if s.kind == kind]


@pytest.mark.parametrize("spec", [small_machine(), dimm_machine()], ids=["one-piece", "dimms"])
def test_the_gpu_reads_it_over_pcie(spec: MachineSpec) -> None:
    """The first layer's attention waits for all of it; the second one's was read meanwhile."""
    gpu, main = machine_of(spec, "gpu"), machine_of(spec, "main")
    plans = LayerPlan(0, {"cpu": (0, 1, 2, 3, 4, 5, 6, 7)}), LayerPlan(1, {"cpu": (0,)})
    attention, *_ = run_layers(gpu, *plans)
    first, second, _ = run_layers(main, *plans)
    reading = 30_000 + round(spec.pcie.latency_us * 1000)
    assert spans(gpu, "kv") == []
    assert spans(main, "kv")[:2] == [("pcie", reading), ("pcie", reading)]
    assert first == reading > attention
    computing = [ns for lane, ns in spans(main, "expert") if lane == "cpu"]
    assert second - first < sum(computing[:8]) + reading, "read beside the layer before"


def test_it_waits_behind_the_copies_of_the_layer_before() -> None:
    """Two experts over PCIe, then the next layer's keys and values: 30 us each."""
    machine = machine_of(dimm_machine(), "main")
    plan = LayerPlan(0, {"gpu": (0, 1)}, (Move(0, 0), Move(0, 1)))
    first, second, _ = run_layers(machine, plan, LayerPlan(1, {"cpu": (0,)}))
    assert second - first == pytest.approx(90_000, abs=10)


def test_it_takes_channels_from_the_cpu() -> None:
    """PCIe reads a third of both channels: the CPU, which needs all of them, has two thirds."""
    alone, beside = (machine_of(dimm_machine(sharing="pcie-first"), kv) for kv in ("gpu", "main"))
    plan = LayerPlan(0, {"cpu": (0, 1)})
    for machine in (alone, beside):
        run_layers(machine, plan)
    assert [ns for _, ns in spans(alone, "expert")] == [10_000, 10_000]
    assert [ns for _, ns in spans(beside, "expert")] == pytest.approx([15_000, 15_000], abs=2)


def test_the_cpu_computes_with_it_where_it_lies() -> None:
    """60 kB at its 6 GB/s, after what the GPU does without a context."""
    gpu, cpu = machine_of(dimm_machine(), "gpu"), machine_of(dimm_machine(), "main-cpu")
    plan = LayerPlan(0, {"cpu": (0,)})
    run_layers(gpu, plan)
    over, _ = run_layers(cpu, plan)
    assert spans(cpu, "kv") == [("cpu", 10_000)]
    own = gpu.physics.attention_ns("gpu", Step.decode(1))
    assert over == own + 10_000
    assert own < gpu.physics.attention_ns("gpu", Step.decode(1, CONTEXT))


@pytest.mark.parametrize("kv_cache", ["main", "main-cpu"])
def test_without_a_context_there_is_nothing_to_read(kv_cache: str) -> None:
    machine = machine_of(dimm_machine(), kv_cache)
    machine.begin(Step.decode(1), lambda layer: routing_of(layer, [list(range(8))]))
    machine.route(0)
    assert spans(machine, "kv") == []
