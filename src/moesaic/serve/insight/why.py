"""Why an expert was computed where it was, in one sentence or two: from what the brain saw and
planned with, and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from moesaic.core.units import NS_PER_US
from moesaic.engine.insight.facts import EngineFacts, ExpertFacts, LayerFacts, PlannedLanes, Ran
from moesaic.serve.insight.expected_end import expected_end_ns

_PLACES = {
    "accelerator": "in GPU memory",
    "coming": "on its way to GPU memory",
    "host": "not in GPU memory",
    "unknown": "in GPU memory or not",
}
_DONE = {
    "gpu": "computed on the GPU",
    "cpu": "computed on the CPU",
    "link": "copied over the link and computed on the GPU",
}


def why(each: ExpertFacts, layer: LayerFacts, engine: EngineFacts) -> str:
    lanes = layer.lanes
    if lanes is None:
        return _without_accelerator(each)
    if layer.believed_ns is None:
        return _captured(each, lanes)
    if not engine.decides:
        return (
            f"The schedule {engine.policies['schedule']!r} goes by where an expert is, whatever it "
            f"costs: this one was {_PLACES[each.place]}, so it was {_DONE[each.ran]}."
        )
    return f"{_reason(each, layer, lanes)}{_alternative(each, layer, engine)}"


def options(each: ExpertFacts, layer: LayerFacts) -> dict[str, float | None]:
    """What each way would have taken for this expert alone, were the lanes free."""
    gpu_ns, lanes = each.gpu_ns, layer.lanes
    on_gpu = over_link = None
    if gpu_ns is not None and each.place in ("accelerator", "coming"):
        on_gpu = each.arrives_ns + gpu_ns
    if gpu_ns is not None and lanes is not None and each.place == "host":
        over_link = lanes.transfer + gpu_ns
    known: dict[str, Any] = {"gpu_us": on_gpu, "cpu_us": each.cpu_ns, "link_us": over_link}
    return {name: None if ns is None else round(ns / NS_PER_US, 1) for name, ns in known.items()}


def _without_accelerator(each: ExpertFacts) -> str:
    taken = f"{_us(each.cpu_ns)} for {_tokens(each)}"
    return f"There is no accelerator: all experts are computed on the CPU; this one takes {taken}."


def _captured(each: ExpertFacts, lanes: PlannedLanes) -> str:
    """Of a step whose plans are made without Python."""
    costs = f"for {_tokens(each)}, {_us(each.gpu_ns)} there and {_us(each.cpu_ns)} on the CPU"
    if each.ran == "cpu":
        done = (
            f"The CPU computed it: {_us(each.cpu_ns)} for {_tokens(each)}; a copy takes "
            f"{_us(lanes.transfer)}, and the GPU then {_us(each.gpu_ns)}"
        )
    elif each.ran == "link":
        done = f"It came over the link ({_us(lanes.transfer)}) and ran on the GPU: {costs}"
    elif each.place == "coming":
        done = f"It was brought to GPU memory ahead, or was there: {costs}"
    else:
        done = f"It was in GPU memory: {costs}"
    return f"{done}. The step ran as CUDA graphs, and what else was weighed is not kept."


def _reason(each: ExpertFacts, layer: LayerFacts, lanes: PlannedLanes) -> str:
    gpu, cpu = _us(each.gpu_ns), _us(each.cpu_ns)
    where = _PLACES[each.place]
    if each.place == "coming":
        where += f", to arrive in {_us(each.arrives_ns)}"
    if each.ran == "link":
        return (
            f"It was {where}, and {_load(layer, 'cpu', each)}: it was copied, in "
            f"{_us(lanes.transfer)}, to be computed on the GPU in {gpu} instead of {cpu} on the CPU"
            f" ({_tokens(each)})."
        )
    if each.ran == "gpu":
        waited = ", which waited for it" if each.place == "coming" else ""
        return f"It was {where}: {gpu} for {_tokens(each)} on the GPU{waited}, {cpu} on the CPU."
    if each.place == "host":
        return (
            f"It was {where}: {cpu} for {_tokens(each)} on the CPU, against {_us(lanes.transfer)} "
            f"for a copy and {gpu} on the GPU."
        )
    return (
        f"It was {where}, but {_load(layer, 'gpu', each)}: the CPU computed it meanwhile, in {cpu} "
        f"for {_tokens(each)} instead of {gpu}."
    )


def _load(layer: LayerFacts, lane: Ran, but: ExpertFacts) -> str:
    """What a device had to do beside this expert."""
    on_gpu = lane == "gpu"
    others = [
        each
        for each in layer.experts
        if each.expert != but.expert and (each.ran != "cpu") == on_gpu
    ]
    name = "the GPU" if on_gpu else "the CPU"
    taken = sum((each.gpu_ns if on_gpu else each.cpu_ns) or 0 for each in others)
    busy = 0 if layer.lanes is None else layer.lanes.gpu_free if on_gpu else layer.lanes.cpu_free
    earlier = f" after {_us(busy)} of earlier work" if busy else ""
    if not others:
        return f"{name} had no other expert{earlier}"
    number = f"{len(others)} other expert{'s' if len(others) > 1 else ''}"
    return f"{name} had {number} of this layer, {_us(taken)} in all{earlier}"


def _alternative(each: ExpertFacts, layer: LayerFacts, engine: EngineFacts) -> str:
    """When the layer would have been expected to end otherwise, by the planner's own sum."""
    planned = expected_end_ns(layer)
    found = [
        (end, way)
        for way in _other_ways(each)
        if (end := expected_end_ns(layer, {each.expert: way})) is not None
    ]
    if planned is None or not found:
        return ""
    end, way = min(found)
    otherwise = {"gpu": "On the GPU", "cpu": "On the CPU", "link": "Copied"}[way]
    expected = f" {otherwise} instead, the layer was expected to take {_us(end)}"
    if end > planned:
        return f"{expected}, not {_us(planned)}."
    if end == planned:
        return f"{expected} as well."
    return (
        f"{expected}, {_us(planned)} as planned: the schedule {engine.policies['schedule']!r} does "
        "not weigh every assignment."
    )


def _other_ways(each: ExpertFacts) -> Iterator[Ran]:
    if each.ran == "cpu":
        yield "link" if each.place == "host" else "gpu"
    else:
        yield "cpu"


def _us(ns: int | None) -> str:
    if ns is None:
        return "an unknown time"
    us = ns / NS_PER_US
    if us < 0.1:
        return "less than 0.1 µs"
    return f"{us:.1f} µs" if us < 100 else f"{us:,.0f} µs"


def _tokens(each: ExpertFacts) -> str:
    return "1 token" if each.tokens == 1 else f"{each.tokens} tokens"
