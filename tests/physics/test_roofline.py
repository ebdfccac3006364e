"""Do the derived costs equal the roofline by hand, for an invented machine and model?

The model: hidden 100, experts 100 wide (30,000 parameters, 60 kB in bf16), shared experts 50
wide (15,000), dense layers 200 wide (60,000), 4 heads and 2 key-value heads of 25 (attention:
100 x 25 x (8 + 4) = 30,000 parameters; 100 values per token in the cache), 6 experts to route to
(600), 1,000 words (100,000).
The machine: GPU 60 GB/s and 1 TFLOP/s, 2 us per expert, 5 us per layer; CPU 6 GB/s and 0.02
TFLOP/s, 1 us per expert, 7 us for the first of a layer; link 2 GB/s and 4 us."""

from __future__ import annotations

from dataclasses import replace

import pytest

from made_up import RandomStep, random_steps, small_machine, small_model
from moesaic.core.layer_plan import LayerPlan
from moesaic.core.offloading import CPU, GPU
from moesaic.core.report import Timeline, busy_ns
from moesaic.core.step import Step
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.model_spec import ModelSpec

MODEL = small_model(layers=2, dense=1)
PHYSICS = Physics(small_machine(), MODEL)
ONE = Step.decode(1)


def test_an_expert_on_the_gpu_costs_its_overhead_and_the_longer_of_bytes_and_products() -> None:
    """60 kB at 60 GB/s: 1 us. 60 kFLOP per token at 1 TFLOP/s: 0.06 us; 17 tokens: 1.02 us."""
    assert [PHYSICS.expert_ns(GPU, t) for t in (1, 16, 17, 100)] == [3000, 3000, 3020, 8000]


def test_the_cpu_is_memory_bound_first_and_linear_in_tokens_beyond() -> None:
    """60 kB at 6 GB/s: 10 us. 60 kFLOP at 0.02 TFLOP/s: 3 us per token, more from 4 tokens on."""
    assert [PHYSICS.expert_ns(CPU, t) for t in (1, 2, 3)] == [11_000] * 3
    beyond = [PHYSICS.expert_ns(CPU, t) for t in range(4, 40)]
    assert beyond == [1000 + 3000 * t for t in range(4, 40)]
    assert PHYSICS.cpu_first_ns == 7000


def test_a_transfer_costs_latency_and_bytes() -> None:
    assert PHYSICS.transfer_ns == 4000 + 30_000


def test_fewer_bits_move_and_stream_faster() -> None:
    """4.5 bits per weight instead of 16."""
    machine = small_machine()
    rates = {"bf16": 2.0, "int4": 2.0}
    machine = replace(machine, gpu=replace(machine.gpu, matmul_tflops=rates))
    packed = Physics(machine, MODEL, expert_dtype="int4")
    assert packed.expert_bytes == 16_875
    assert packed.transfer_ns == 4000 + round(16_875 / 2)
    assert packed.expert_ns(GPU, 1) == 2000 + round(16_875 / 60)


def test_kernels_that_unpack_are_as_slow_as_was_measured() -> None:
    """int4: 30,000 weights of 4.5 bits, 16,875 bytes; at 0.5 GB/s instead of 6: 33.75 us."""
    machine = small_machine()
    rates = {"bf16": 0.02, "int4": 0.02}
    cpu = replace(machine.cpu, matmul_tflops=rates, expert_gb_s={"int4": 0.5})
    slow = replace(machine, cpu=cpu)
    assert Physics(slow, MODEL, "int4").expert_ns(CPU, 1) == 34_750
    assert Physics(slow, MODEL).expert_ns(CPU, 1) == PHYSICS.expert_ns(CPU, 1)


def test_attention_reads_its_weights_and_the_cache() -> None:
    """30,600 parameters (61.2 kB) and 100 values of 2 bytes per token: one token, 1,020 ns and
    200 bytes more (3.3 ns); 3,000 tokens back, 600,200 bytes more, 10,003 ns. Each layer costs
    5 us on the GPU, nothing fixed on the CPU."""
    assert PHYSICS.attention_ns(GPU, ONE) == 5000 + round(61_400 / 60)
    back = ONE.behind(3000)
    assert PHYSICS.attention_ns(GPU, back) == 5000 + round((61_200 + 600_200) / 60)
    assert PHYSICS.attention_ns(CPU, ONE) == round(61_400 / 6)


def test_a_kv_cache_in_int8_is_half_as_many_bytes_and_scales() -> None:
    step, token = Step.of([(1, 1000)]), MODEL.kv_values_per_token
    codes = Physics(small_machine(), MODEL, kv_dtype="int8")
    assert PHYSICS.kv_bytes(step) == 1000 * 2 * token
    assert codes.kv_bytes(step) == 1000 * (token + 4 * MODEL.num_kv_heads)
    assert codes.attention_ns(GPU, step) < PHYSICS.attention_ns(GPU, step)
    windows = replace(MODEL, sliding_window=100, window_layers=tuple(range(MODEL.num_layers)))
    assert Physics(small_machine(), windows, kv_dtype="int8").kv_bytes(step) == 99 * 2 * token


def test_attention_of_a_long_prompt_is_bound_by_products() -> None:
    """1,000 tokens: 61.2 MFLOP for the projections, and 400 FLOP for each of the 500,500 pairs of
    a token and one at or before it."""
    prompt = Step.prompt(1000)
    flops = 61_200_000 + 400 * 500_500
    assert PHYSICS.attention_ns(GPU, prompt) == 5000 + round(flops / 1000)


def test_several_sequences_do_not_look_at_each_other() -> None:
    together = Step.decode(4, 50)
    size = 61_200 + 4 * 51 * 200
    assert PHYSICS.attention_ns(GPU, together) == 5000 + round(size / 60)


def test_shared_experts_dense_layers_and_head() -> None:
    """30 kB, 120 kB and 200 kB at 60 GB/s, 2 us each, the dense layer with its attention."""
    assert PHYSICS.shared_ns(GPU, 1) == 2000 + 500
    assert PHYSICS.shared_ns(CPU, 1) == 1000 + 5000
    attention = PHYSICS.attention_ns(GPU, ONE)
    assert PHYSICS.dense_layer_ns(GPU, ONE) == attention + 2000 + 2000
    assert PHYSICS.head_ns(1) == 2000 + 3333


def run_step(model: ModelSpec, step: RandomStep, dense_on: list[str] | None = None) -> SimMachine:
    """Everything routed runs on the CPU."""
    machine = SimMachine(Physics(small_machine(), model), 0, Timeline(), dense_on)
    machine.begin(step.step, step.layer)
    for layer in range(model.num_moe_layers):
        routing = machine.route(layer)
        active = tuple(sorted(set(routing.experts.ravel().tolist())))
        machine.run(LayerPlan(layer, {CPU: active}))
    machine.finish()
    return machine


def test_a_step_is_the_sum_of_its_parts() -> None:
    """One dense layer, two with attention, shared experts on the GPU beside the two routed ones
    on the CPU (which take longer), and the head."""
    (step,) = random_steps(0, 1, MODEL)
    machine = run_step(MODEL, step)
    attention = PHYSICS.attention_ns(GPU, step.step)
    layer = PHYSICS.cpu_first_ns + 2 * PHYSICS.expert_ns(CPU, 1)
    dense = PHYSICS.dense_layer_ns(GPU, step.step)
    assert machine.clock.now == dense + 2 * (attention + layer) + PHYSICS.head_ns(1)


@pytest.mark.parametrize("layer", [0, 1])
def test_dense_work_runs_where_its_layer_is(layer: int) -> None:
    """A layer on the CPU does its attention and shared experts there (llama.cpp)."""
    (step,) = random_steps(0, 1, MODEL)
    where = [GPU, GPU]
    where[layer] = CPU
    machine = run_step(MODEL, step, where)
    lanes = {s.layer: s.lane for s in machine.timeline.spans if s.kind == "dense" and s.layer >= 0}
    assert lanes == {layer: CPU, 1 - layer: GPU}
    on_cpu = [s for s in machine.timeline.spans if s.lane == CPU and s.layer == layer]
    took = [s.end_ns - s.start_ns for s in on_cpu if s.kind == "dense"]
    assert took == [PHYSICS.attention_ns(CPU, step.step), PHYSICS.shared_ns(CPU, 1)]


def test_lanes_account_for_every_span() -> None:
    (step,) = random_steps(0, 1, MODEL)
    machine = run_step(MODEL, step)
    for name, lane in machine.lanes.items():
        assert lane.busy_ns == busy_ns(machine.timeline.spans, name)
