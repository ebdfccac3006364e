"""How long 128 decode steps of Qwen3-235B-A22B (94 layers, batch 512) take to predict, migrate and
schedule, by the makespan model: `python -m benchmarks.tri_speed [--system trimoe]`. Goal: 60 s."""

from __future__ import annotations

import argparse
from time import perf_counter

import numpy as np

from benchmarks.tri_layers import MODELS, PROFILE_STEPS
from moesaic.policies.tri.layout import offline_layout
from moesaic.policies.tri.replay import TRI_SYSTEMS, Window, load_tri_system, replay
from moesaic.policies.tri.rooflines import TABLE_1, costs_from_rates
from moesaic.workloads.synthetic.expert_loads import LoadProcess

STEPS, BATCH = 128, 512
WINDOW_NS = 0.68e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", choices=list(TRI_SYSTEMS), default="trimoe")
    system = load_tri_system(parser.parse_args().system)
    model = MODELS[1]
    costs = costs_from_rates(TABLE_1, model.size, BATCH)
    process = LoadProcess(model.layers, model.experts, model.top_k, BATCH)
    loads = np.stack(list(process.steps(PROFILE_STEPS + 1 + STEPS)))
    profile = loads[:PROFILE_STEPS]
    layouts = [
        offline_layout(costs, np.ascontiguousarray(profile[:, layer]), model.slots, system.devices)
        for layer in range(model.layers)
    ]
    window = Window(WINDOW_NS, model.size.num_bytes / TABLE_1.link_gb_s)
    run = replay(system, costs, layouts, window, profile=profile.mean(axis=0))
    run.step(loads[PROFILE_STEPS])  # compiles
    start = perf_counter()
    makespans = [run.step(step).makespan_ns for step in loads[PROFILE_STEPS + 1 :]]
    seconds = perf_counter() - start
    print(f"{STEPS} steps of {model.name}: {seconds:.1f} s, mean layer {np.mean(makespans):.0f} ns")


if __name__ == "__main__":
    main()
