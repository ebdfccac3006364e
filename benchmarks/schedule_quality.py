"""How far from the exact optimum schedules are: `python -m benchmarks.schedule_quality`.

Random layers of up to ten active experts and of eleven to fourteen, some cached, devices and link
perhaps busy, with costs from GPU-bound to link-bound; believed makespan over the optimal one. One
expert is perhaps under way, or, in layers of their own, two to five that arrive one after the other
in any order of loads."""

from __future__ import annotations

import argparse
import json

import numpy as np

from moesaic.policies.belief import Belief
from moesaic.policies.schedule import schedules
from moesaic.policies.schedule.base import Work

LAYERS = 3000
CASES = {  # the least experts, the most, and how many of them are under way at most
    "1 to 10 experts": (1, 10, 1),
    "11 to 14 experts": (11, 14, 1),
    "2 to 10, 2 to 5 under way": (2, 10, 5),
    "11 to 14, 2 to 5 under way": (11, 14, 5),
}
NAMES = ("best-split", "hybrid", "threshold", "gpu-only", "static-experts")


def random_layer(
    rng: np.random.Generator, least: int = 1, largest: int = 10, under_way: int = 1
) -> Work:
    n, max_load = int(rng.integers(least, largest + 1)), int(rng.choice([1, 8, 60]))
    loads = -np.sort(-rng.integers(1, max_load + 1, n))
    ready = np.where(rng.random(n) < rng.random(), 0, -1)
    belief = random_belief(rng, max_load)
    if under_way > 1:
        copies = rng.permutation(n)[: rng.integers(2, under_way + 1)]
        ready[copies] = rng.integers(1, belief.transfer_ns + 1)  # when the first arrives
        ready[copies] += belief.transfer_ns * np.arange(len(copies))
    elif rng.random() < 0.5:
        ready[rng.integers(n)] = rng.integers(1, belief.transfer_ns + 1)
    link = max(int(ready.max()), 0)  # the link is busy with what is under way
    gpu = cpu = 0
    if rng.random() < 0.5:  # shared experts, another layer's transfer, what was handed over before
        gpu, cpu = (int(rng.integers(0, 2 * belief.tables[1, 1] + 1)) for _ in range(2))
        link += int(rng.integers(0, belief.transfer_ns + 1))
    lanes = np.array([gpu, cpu, link, belief.cpu_first_ns, belief.transfer_ns, 0], dtype=np.int64)
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


def measured(case: str) -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    layers = [random_layer(rng, *CASES[case]) for _ in range(LAYERS)]
    best = np.array([schedules.create("optimal").assign(work).believed_ns for work in layers])
    rows: list[dict[str, object]] = []
    for name in NAMES:
        schedule = schedules.create(name)
        ratio = np.array([schedule.assign(work).believed_ns for work in layers]) / best
        worst = {"mean": ratio.mean(), "p99": np.percentile(ratio, 99), "max": ratio.max()}
        rows.append({"layers": case, "schedule": name, **{k: float(v) for k, v in worst.items()}})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [row for case in CASES for row in measured(case)]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(
            f"{row['layers']:26}  {row['schedule']:14}  mean {row['mean']:.4f}  "
            f"p99 {row['p99']:.3f}  max {row['max']:.3f}  times the optimum"
        )


if __name__ == "__main__":
    main()
