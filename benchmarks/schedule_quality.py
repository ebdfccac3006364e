"""How far from the exact optimum schedules are: `python -m benchmarks.schedule_quality`.

Random layers of up to ten active experts, some cached, one perhaps under way, devices and link
perhaps busy, with costs from GPU-bound to link-bound; believed makespan over the optimal one."""

from __future__ import annotations

import argparse
import json

import numpy as np

from moesaic.policies.belief import Belief
from moesaic.policies.schedule import schedules
from moesaic.policies.schedule.base import Work

LAYERS = 3000
NAMES = ("best-split", "hybrid", "threshold", "gpu-only", "static-experts")


def random_layer(rng: np.random.Generator) -> Work:
    n, max_load = int(rng.integers(1, 11)), int(rng.choice([1, 8, 60]))
    loads = -np.sort(-rng.integers(1, max_load + 1, n))
    ready = np.where(rng.random(n) < rng.random(), 0, -1)
    belief = random_belief(rng, max_load)
    if rng.random() < 0.5:
        ready[rng.integers(n)] = rng.integers(1, belief.transfer_ns + 1)
    link = max(int(ready.max()), 0)  # the link is busy with what is under way
    gpu = cpu = 0
    if rng.random() < 0.5:  # shared experts, another layer's transfer, what was handed over before
        gpu, cpu = (int(rng.integers(0, 2 * belief.tables[1, 1] + 1)) for _ in range(2))
        link += int(rng.integers(0, belief.transfer_ns + 1))
    lanes = np.array([gpu, cpu, link, belief.cpu_first_ns, belief.transfer_ns], dtype=np.int64)
    return Work(0, n, np.stack([rng.permutation(n), loads, ready]).astype(np.int64), lanes, belief)


def random_belief(rng: np.random.Generator, max_load: int) -> Belief:
    """Costs of a real machine's kind, or anything: fixed parts and slopes that no machine has."""
    tokens = np.arange(max_load + 1)
    if rng.random() < 0.5:
        transfer, cpu = (
            int(rng.choice([60_000, 300_000, 600_000])),
            int(rng.choice([60_000, 300_000])),
        )
        tables = np.stack([20_000 + 100 * tokens, cpu + cpu // 10 * tokens])
        return Belief(tables, 50_000, transfer)
    gpu, gpu_slope, cpu, cpu_slope = rng.integers([1, 0, 0, 0], [31, 6, 61, 31])
    tables = np.stack([gpu + gpu_slope * tokens, 1 + cpu + cpu_slope * tokens])
    return Belief(tables, int(rng.integers(0, 60)), int(rng.integers(1, 121)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    layers = [random_layer(rng) for _ in range(LAYERS)]
    best = np.array([schedules.create("optimal").assign(work).believed_ns for work in layers])
    rows = []
    for name in NAMES:
        schedule = schedules.create(name)
        ratio = np.array([schedule.assign(work).believed_ns for work in layers]) / best
        worst = {"mean": ratio.mean(), "p99": np.percentile(ratio, 99), "max": ratio.max()}
        rows.append({"schedule": name, **{k: float(v) for k, v in worst.items()}})
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(
            f"{row['schedule']:16} mean {row['mean']:.4f}  p99 {row['p99']:.3f}  "
            f"max {row['max']:.3f}  times the optimum"
        )


if __name__ == "__main__":
    main()
