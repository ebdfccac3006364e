"""How long simulating takes: `python -m benchmarks.simulator`.

1,000 decode steps of DeepSeek-V2-Lite (26 MoE layers) under hybrid + mrs + impact are to take at
most 10 s on two cores, and time is to grow linearly with steps."""

from __future__ import annotations

import argparse
import json
import time

from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.systems import load_system

STEPS = (250, 500, 1000, 2000)
TARGET_S = 10.0


def seconds(steps: int) -> float:
    model, machine = load_model("deepseek-v2-lite"), load_machine("a6000-xeon5220r")
    policies = load_system("hybrimoe").policies
    settings = Settings(model, machine, tokens=steps, warmup=0, policies=policies)
    source = choose_workload(None, settings).source
    start = time.perf_counter()
    simulate(settings, source)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    seconds(2)  # loads the compiled planners
    rows = [{"steps": steps, "seconds": seconds(steps)} for steps in STEPS]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        note = f"  (target {TARGET_S:g} s)" if row["steps"] == 1000 else ""
        per_layer = row["seconds"] / row["steps"] / 26 * 1e6
        print(f"{row['steps']:6} steps {row['seconds']:8.2f} s {per_layer:8.1f} us/layer{note}")


if __name__ == "__main__":
    main()
