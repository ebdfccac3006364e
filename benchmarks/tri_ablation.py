"""What layouts and systems over GPU, CPU and DIMMs are worth, by the makespan model:
`python -m benchmarks.tri_ablation [--layers 4] [--batch 512] [--model NAME] [--json]`.

`layout`: mean makespan under static layouts, scheduled as TriMoE does and near-exactly, over the
lower bound of any layout without splits. `system`: decode steps with prediction and migration, and
how long one layer takes to decide."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from time import perf_counter

import numpy as np

from benchmarks.tri_layers import MODELS, PROFILE_STEPS, TABLE_1, WRONG, Model, costs_from_rates
from moesaic.policies.layout.offline import DEVICES
from moesaic.policies.tri.costs import TriCosts
from moesaic.policies.tri.exact import free_layout_bound
from moesaic.policies.tri.fast import KICKS, ROUNDS, balanced
from moesaic.policies.tri.layer import Ints, makespan, options_of
from moesaic.policies.tri.layout import offline_layout
from moesaic.policies.tri.refine import REFINE, trimoe
from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.beyond import shuffled, variants
from moesaic.reproductions.trimoe.makespan_model import Window, replay
from moesaic.reproductions.trimoe.sec55 import class_accuracy
from moesaic.reproductions.trimoe.systems import SYSTEMS
from moesaic.workloads.synthetic.expert_loads import LoadProcess

STEPS = 8
WINDOW_NS = 0.68e6  # TriMoE, section 5.5
Rows = list[dict[str, object]]


def layout_rows(model: Model, costs: TriCosts, loads: Ints, wrong: float) -> Rows:
    found: dict[str, list[tuple[float, float, float]]] = {}
    for layer in range(loads.shape[1]):
        profile = np.ascontiguousarray(loads[:PROFILE_STEPS, layer])
        layouts = variants(costs, profile, model.experts)
        for step in loads[PROFILE_STEPS:, layer]:
            bound = free_layout_bound(costs, step[step > 0], model.slots)
            for name, layout in layouts.items():
                used = shuffled(layout, wrong, layer) if wrong else layout
                options = options_of(costs, used.active(costs, step)[1])
                by_trimoe = makespan(options, trimoe(options, REFINE))
                by_balanced = balanced(options, ROUNDS, KICKS)[1]
                found.setdefault(name, []).append((by_trimoe, by_balanced, bound))
    rows: Rows = []
    for name, values in found.items():
        trimoe_ns, balanced_ns, bound_ns = np.mean(values, axis=0)
        times = {"trimoe_ms": trimoe_ns / 1e6, "tri_balanced_ms": balanced_ns / 1e6}
        wrongness = {"layout": name, "wrong": wrong, "free_bound_ms": bound_ns / 1e6}
        rows.append({"kind": "layout", "model": model.name, **wrongness, **times})
    return rows


def system_rows(model: Model, cost: Callable[[bool], TriCosts], loads: Ints) -> Rows:
    layers, rows = loads.shape[1], []
    profile = loads[:PROFILE_STEPS]
    link_ns = model.size.num_bytes / TABLE_1.link_gb_s
    known = profile.mean(axis=0)
    for name, policies in SYSTEMS.items():
        if name == paper.LOCALIZED:  # all layouts are cut here
            continue
        costs = cost(name == "klotski")
        devices = DEVICES[str(policies.layout.parameters["devices"])]
        places = [
            offline_layout(costs, np.ascontiguousarray(profile[:, layer]), model.slots, devices)
            for layer in range(layers)
        ]
        run = replay(policies, costs, places, Window(WINDOW_NS, link_ns), known)
        run.step(loads[PROFILE_STEPS])  # compiles
        start, right = perf_counter(), []
        found = []
        for step in loads[PROFILE_STEPS + 1 :]:
            said = run.layout.predictor.loads.copy()
            found.append(run.step(step))
            right += [
                class_accuracy(said[at], step[at], model.slots, model.experts // 4)
                for at in range(layers)
            ]
        wall_ms = 1e3 * (perf_counter() - start) / len(found) / layers
        moves = sum(step.moves for step in found) / len(found) / layers
        rows.append(
            {
                "kind": "system",
                "model": model.name,
                "system": name,
                "layer_ms": float(np.mean([step.makespan_ns.mean() for step in found]) / 1e6),
                "moves_per_layer": [round(float(count), 2) for count in np.atleast_1d(moves)],
                "class_accuracy": float(np.mean(right)),
                "decision_ms": wall_ms,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--model", choices=[model.name for model in MODELS])
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows: Rows = []
    for model in MODELS:
        if asked.model not in (None, model.name):
            continue
        process = LoadProcess(asked.layers, model.experts, model.top_k, asked.batch)
        loads = np.stack(list(process.steps(PROFILE_STEPS + STEPS)))

        def cost(pipelined: bool, model: Model = model) -> TriCosts:
            return costs_from_rates(TABLE_1, model.size, asked.batch, pipelined=pipelined)

        for wrong in WRONG:
            rows += layout_rows(model, cost(False), loads, wrong)
        rows += system_rows(model, cost, loads)
    if asked.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{v}" for k, v in row.items()))


if __name__ == "__main__":
    main()
