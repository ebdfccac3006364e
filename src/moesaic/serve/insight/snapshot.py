"""An insight as the JSON that clients get; docs/insight.md has the fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moesaic.core.offloading import PCIE
from moesaic.core.units import NS_PER_US
from moesaic.engine.insight.facts import Conversation, EngineFacts, Insight, LayerFacts, StepFacts
from moesaic.engine.run_stats import LaneStats
from moesaic.serve.insight.expected_end import expected_end_ns
from moesaic.serve.insight.why import options, why

MOST_EXPLAINED = 1500  # experts of a step; with more, one layer at a time is explained


def model_json(engine: EngineFacts) -> dict[str, Any]:
    kind = engine.accelerator
    return {
        "name": engine.model,
        "layers": engine.layers,
        "experts": engine.experts,
        "top_k": engine.top_k,
        "shared_experts": engine.shared_experts,
        "expert_bytes": engine.expert_bytes,
        "expert_dtype": engine.expert_dtype,
        "executor": engine.executor,
        "why_layerwise": engine.why_layerwise,
        "accelerator": None if kind is None else {"kind": kind[0], "name": kind[1]},
        "slots": engine.slots,
        "policies": engine.policies,
        "machine": engine.machine,
        "lanes": [lane_name(lane) for lane in engine.lanes],
    }


def snapshot_json(insight: Insight, names: Mapping[int, str]) -> dict[str, Any]:
    """`names`: of requests as their clients know them, by the engine's number."""
    step, engine = insight.step, insight.engine
    explained = step is not None and (
        sum(len(layer.experts) for layer in step.layers) <= MOST_EXPLAINED
    )
    layers = [] if step is None else step.layers
    stats, hits = insight.stats, insight.hits
    return {
        "time_s": round(insight.time_s, 3),
        "step": None if step is None else _step(step),
        "layers": [layer_json(layer, engine, explained) for layer in layers],
        "resident": insight.resident,
        "lanes": _lanes(stats.lanes, stats.bytes_moved),
        "hits": {
            "window_steps": 0 if hits is None else hits.window_steps,
            "actual": None if hits is None else hits.actual,
            "lru": None if hits is None else hits.lru,
            "belady": None if hits is None else hits.belady,
            "what_if_ratio": None if hits is None or engine.slots else hits.ratio,
        },
        "tokens": {
            "prompt": stats.prompt_tokens,
            "generated": stats.generated_tokens,
            "cached": stats.cached_tokens,
            "steps": stats.steps,
            "step_s": stats.step_s,
        },
        "queue": {"running": stats.queue.running, "waiting": stats.queue.waiting},
        "kv": _kv(insight, names),
    }


def layer_json(layer: LayerFacts, engine: EngineFacts, explained: bool = True) -> dict[str, Any]:
    predicted = layer.believed_ns
    if predicted is None:
        predicted = expected_end_ns(layer)
    return {
        "layer": layer.layer,
        "measured_us": _us(layer.measured_ns),
        "predicted_us": None if predicted is None else _us(predicted),
        "active": layer.active,
        "hits": layer.hits,
        "bytes_moved": layer.bytes_moved,
        "cpu_us": _us(layer.cpu_ns) if layer.cpu_ns else None,
        "experts": [
            {
                "expert": each.expert,
                "tokens": each.tokens,
                "ran": each.ran,
                "resident": each.place == "accelerator",
                "why": why(each, layer, engine) if explained else None,
                "options": options(each, layer) if explained else None,
            }
            for each in layer.experts
        ],
    }


def lane_name(lane: str) -> str:
    """As experts say where they ran."""
    return "link" if lane == PCIE else lane


def _step(step: StepFacts) -> dict[str, Any]:
    return {
        "number": step.number,
        "kind": step.kind,
        "tokens": step.tokens,
        "sequences": step.sequences,
        "latency_us": _us(step.latency_ns),
        "executor": step.executor,
    }


def _lanes(lanes: LaneStats, link_bytes: int) -> list[dict[str, Any]]:
    known = {"gpu": lanes.gpu_s, "cpu": lanes.cpu_s, "link": lanes.link_s}
    return [
        {"lane": name, "busy_s": busy, "bytes": link_bytes if name == "link" else None}
        for name, busy in known.items()
        if busy is not None
    ]


def _kv(insight: Insight, names: Mapping[int, str]) -> dict[str, Any]:
    blocks = insight.stats.blocks
    return {
        "blocks": blocks.total,
        "used": blocks.used - blocks.kept,
        "kept": blocks.kept,
        "shared": blocks.shared,
        "block_tokens": insight.engine.block_tokens,
        "conversations": [_conversation(each, names) for each in insight.conversations],
        "omitted": insight.omitted_conversations,
    }


def _conversation(each: Conversation, names: Mapping[int, str]) -> dict[str, Any]:
    kept = each.state == "kept"
    return {
        "id": f"{'kept' if kept else 'request'}-{each.id}",
        "request_id": None if kept else names.get(each.id),
        "client": each.client,
        "state": each.state,
        "blocks": each.blocks,
        "tokens": each.tokens,
        "cached_tokens": each.cached_tokens,
    }


def _us(ns: int) -> float:
    return round(ns / NS_PER_US, 1)
