"""Does the sentence about an expert say what the plan says? Plans are made up, with round costs:
30 µs per expert on the GPU, 90 µs on the CPU, 200 µs for a copy."""

from __future__ import annotations

from dataclasses import replace

from moesaic.engine.insight.facts import (
    EngineFacts,
    ExpertFacts,
    LayerFacts,
    Place,
    PlannedLanes,
    Ran,
)
from moesaic.serve.insight.why import options, why

ENGINE = EngineFacts(
    model="a model", layers=1, experts=8, top_k=2, shared_experts=False, expert_bytes=1000,
    expert_dtype="bf16", executor="layerwise", why_layerwise=None, accelerator=("cuda", "a GPU"),
    slots=2, policies={"schedule": "best-split"}, decides=True, machine="a machine",
    lanes=["gpu", "cpu", "pcie"], block_tokens=64,
)  # fmt: skip
IDLE = PlannedLanes(0, 0, 0, 0, 200_000, 0)


def an_expert(number: int, ran: Ran, place: Place, arrives_us: int = 0) -> ExpertFacts:
    return ExpertFacts(number, 1, ran, place, arrives_us * 1000, 30_000, 90_000)


def a_layer(*experts: ExpertFacts, lanes: PlannedLanes | None = IDLE) -> LayerFacts:
    return LayerFacts(0, 1, 1, len(experts), 0, 0, 0, list(experts), lanes)


def test_what_is_there_runs_there() -> None:
    layer = a_layer(an_expert(3, "gpu", "accelerator"))
    assert why(layer.experts[0], layer, ENGINE) == (
        "It was in GPU memory: 30.0 µs for 1 token on the GPU, 90.0 µs on the CPU. On the CPU "
        "instead, the layer was expected to take 90.0 µs, not 30.0 µs."
    )
    assert options(layer.experts[0], layer) == {"gpu_us": 30.0, "cpu_us": 90.0, "link_us": None}


def test_what_is_missing_runs_on_the_cpu_where_copying_takes_longer() -> None:
    layer = a_layer(an_expert(3, "cpu", "host"), an_expert(4, "gpu", "accelerator"))
    assert why(layer.experts[0], layer, ENGINE) == (
        "It was not in GPU memory: 90.0 µs for 1 token on the CPU, against 200 µs for a copy and "
        "30.0 µs on the GPU. Copied instead, the layer was expected to take 230 µs, not 90.0 µs."
    )
    assert options(layer.experts[0], layer) == {"gpu_us": None, "cpu_us": 90.0, "link_us": 230.0}


def test_what_is_missing_is_copied_where_the_cpu_has_too_much() -> None:
    others = [an_expert(number, "cpu", "host") for number in range(4, 7)]
    layer = a_layer(an_expert(3, "link", "host"), *others)
    assert why(layer.experts[0], layer, ENGINE) == (
        "It was not in GPU memory, and the CPU had 3 other experts of this layer, 270 µs in all: "
        "it was copied, in 200 µs, to be computed on the GPU in 30.0 µs instead of 90.0 µs on the "
        "CPU (1 token). On the CPU instead, the layer was expected to take 360 µs, not 270 µs."
    )


def test_what_is_there_runs_on_the_cpu_where_the_gpu_has_too_much() -> None:
    others = [an_expert(number, "gpu", "accelerator") for number in (4, 5, 6)]
    busy = IDLE._replace(gpu_free=50_000)
    layer = a_layer(an_expert(3, "cpu", "accelerator"), *others, lanes=busy)
    assert why(layer.experts[0], layer, ENGINE) == (
        "It was in GPU memory, but the GPU had 3 other experts of this layer, 90.0 µs in all after "
        "50.0 µs of earlier work: the CPU computed it meanwhile, in 90.0 µs for 1 token instead of "
        "30.0 µs. On the GPU instead, the layer was expected to take 170 µs, not 140 µs."
    )


def test_what_is_on_its_way_is_waited_for() -> None:
    layer = a_layer(an_expert(3, "gpu", "coming", arrives_us=20))
    assert why(layer.experts[0], layer, ENGINE).startswith(
        "It was on its way to GPU memory, to arrive in 20.0 µs: 30.0 µs for 1 token on the GPU, "
        "which waited for it, 90.0 µs on the CPU."
    )
    assert options(layer.experts[0], layer)["gpu_us"] == 50.0


def test_a_plan_that_was_not_the_best_is_not_defended() -> None:
    layer = a_layer(an_expert(3, "link", "host"))
    assert why(layer.experts[0], layer, ENGINE).endswith(
        " On the CPU instead, the layer was expected to take 90.0 µs, 230 µs as planned: the "
        "schedule 'best-split' does not weigh every assignment."
    )


def test_equal_ends_are_no_reason() -> None:
    layer = a_layer(an_expert(3, "gpu", "accelerator"), an_expert(4, "cpu", "host"))
    layer.experts.append(an_expert(5, "cpu", "host"))
    assert "On the CPU instead, the layer was expected to take 270 µs, not 180 µs." in why(
        layer.experts[0], layer, ENGINE
    )
    slow = layer._replace(lanes=IDLE._replace(gpu_free=500_000))
    assert why(slow.experts[1], slow, ENGINE).endswith(
        " Copied instead, the layer was expected to take 560 µs, not 530 µs."
    )
    early = layer._replace(lanes=IDLE._replace(gpu_free=240_000, cpu_free=0))
    assert early.experts[0].ran == "gpu"
    assert why(early.experts[0], early, ENGINE).endswith(
        " On the CPU instead, the layer was expected to take 270 µs as well."
    )


def test_a_schedule_without_costs_is_the_reason_itself() -> None:
    engine = replace(ENGINE, decides=False, policies={"schedule": "static"})
    layer = a_layer(an_expert(3, "cpu", "host"))
    assert why(layer.experts[0], layer, engine) == (
        "The schedule 'static' goes by where an expert is, whatever it costs: this one was not in "
        "GPU memory, so it was computed on the CPU."
    )


def test_without_an_accelerator_there_is_no_choice() -> None:
    layer = a_layer(an_expert(3, "cpu", "host")._replace(gpu_ns=None), lanes=None)
    assert why(layer.experts[0], layer, ENGINE) == (
        "There is no accelerator: all experts are computed on the CPU; this one takes 90.0 µs "
        "for 1 token."
    )
    assert options(layer.experts[0], layer) == {"gpu_us": None, "cpu_us": 90.0, "link_us": None}


def test_of_graphs_only_what_they_leave_is_said() -> None:
    layer = a_layer(an_expert(3, "cpu", "unknown"), an_expert(4, "link", "host"))
    layer = layer._replace(believed_ns=None)
    on_cpu, copied = (why(each, layer, ENGINE) for each in layer.experts)
    assert on_cpu == (
        "The CPU computed it: 90.0 µs for 1 token; a copy takes 200 µs, and the GPU then 30.0 µs. "
        "The step ran as CUDA graphs, and what else was weighed is not kept."
    )
    assert copied.startswith("It came over the link (200 µs) and ran on the GPU: for 1 token, ")
