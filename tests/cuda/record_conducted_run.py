"""Records a run of the captured decode steps of a GPU, for deciding it again (`conducted_run.py`):
`PYTHONPATH=.:tests:tests/cuda python tests/cuda/record_conducted_run.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from gpu_decoding import DecodingScene, small_architecture

from conducted_run import ConductedRun, belief_of, save
from moesaic.core.routing import LayerRouting
from moesaic.policies.policy_set import PolicySet

SYSTEMS = [("best-split", "two-speed", "impact"), ("hybrid", "mrs", "none")]
SLOTS, STEPS = 16, 20
# Nanoseconds; the link is fast enough that some missing experts are worth bringing.
POINTS = {"gpu": {1: 5000}, "cpu": {1: 60000}, "first": 5000, "transfer": 50000, "tokens": 2}


def record(names: tuple[str, str, str]) -> ConductedRun:
    """Random routing with favourites, so that there is something to learn."""
    schedule, cache, prefetch = names
    policies = PolicySet.of(schedule=schedule, cache=cache, prefetch=prefetch)
    architecture = small_architecture()
    belief = belief_of(POINTS)
    scene = DecodingScene(architecture, policies, "bf16", SLOTS, records=True, belief=belief)
    spec, rng, routings = architecture.spec, np.random.default_rng(1), []
    try:
        for step in range(STEPS):
            chosen = []
            for layer in range(spec.num_moe_layers):
                routing = _routing(rng, layer, step, spec.num_experts, spec.top_k)
                routings.append(routing)
                ranks = scene.mailbox.shape.ranks
                parts = (routing.ranked[0, :ranks], routing.scores[0, :ranks], routing.weights[0])
                chosen.append(tuple(torch.from_numpy(np.ascontiguousarray(p)) for p in parts))
            scene.decode([7 + step], [step], [chosen])
        ranks = scene.mailbox.shape.ranks
        decisions = [decision._asdict() for decision in scene.conductor.decisions]
    finally:
        scene.close()
    seen = [_cut(routing, ranks) for routing in routings]
    shape = spec.num_moe_layers, spec.num_experts, spec.top_k
    name = torch.cuda.get_device_name()
    return ConductedRun(name, names, shape, SLOTS, POINTS, seen, decisions)


def _routing(
    rng: np.random.Generator, layer: int, step: int, experts: int, top_k: int
) -> LayerRouting:
    logits = rng.normal(size=experts) + 2.0 * (np.arange(experts) % (layer + 3) == 0)
    ranked = np.argsort(-logits, kind="stable")[None, :].astype(np.int64)
    scores = np.exp(logits)[ranked[0]][None, :].astype(np.float32)
    scores /= scores.sum()
    weights = np.full((1, top_k), 1 / top_k, dtype=np.float32)
    return LayerRouting(layer, ranked[:, :top_k].copy(), weights, ranked, scores, step=step)


def _cut(routing: LayerRouting, ranks: int) -> LayerRouting:
    """What the mailbox has carried."""
    ranked, scores = routing.ranked[:, :ranks].copy(), routing.scores[:, :ranks].copy()
    experts, weights = routing.experts, routing.weights
    return LayerRouting(routing.layer, experts, weights, ranked, scores, step=routing.step)


if __name__ == "__main__":
    for names in SYSTEMS:
        save(record(names), Path(sys.argv[1], f"recorded_cuda_{names[0]}.json.gz"))
