"""How long `moesaic simulate --machine trimoe-paper --model qwen3-235b-a22b --batch 512` takes: 128
decode steps of 94 layers, with the trace made, loads predicted, experts migrated, schedules refined
and everything simulated: `python -m benchmarks.tri_simulator [--system trimoe]`. Goal: 60 s on two
cores. Compiled code is loaded before the clock starts.

Wall time counts what other programs take of the cores; the processor time of this process and of
the one that makes the trace says what quiet cores would need."""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.systems import NEAR_DATA_SYSTEMS, load_system

GOAL_S = 60.0
STEPS, BATCH = 128, 512


def run(system: str, steps: int, batch: int) -> dict[str, Any]:
    model, machine = load_model("qwen3-235b-a22b"), load_machine("trimoe-paper")
    settings = Settings(model, machine, tokens=steps, warmup=0, batch=batch, cache_ratio=0.05)
    settings = settings.with_system(load_system(system))
    before, start = os.times(), time.perf_counter()
    result = simulate(settings, choose_workload(None, settings).source)
    wall, after = time.perf_counter() - start, os.times()
    return {
        "system": system,
        "steps": steps,
        "batch": batch,
        "wall_s": wall,
        "cpu_s": after.user + after.system - before.user - before.system,
        "trace_process_cpu_s": after.children_user - before.children_user,
        "simulated_s_per_step": result.elapsed_s / steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", choices=list(NEAR_DATA_SYSTEMS), default="trimoe")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    run(asked.system, 1, 2)
    row = run(asked.system, asked.steps, asked.batch)
    if asked.json:
        print(json.dumps(row, indent=2))
        return
    print(
        f"{row['steps']} steps of batch {row['batch']} under {row['system']}: {row['wall_s']:.1f} s"
        f" (goal {GOAL_S:g} s), {row['cpu_s']:.1f} s of this process's cores and "
        f"{row['trace_process_cpu_s']:.1f} s of the trace's; "
        f"{row['simulated_s_per_step'] * 1e3:.1f} ms per simulated step"
    )


if __name__ == "__main__":
    main()
