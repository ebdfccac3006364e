"""How far from the exact makespan schedules over GPU, CPU and DIMMs are, and how long they take:
`python -m benchmarks.tri_schedule [--layers 4] [--json]`.

Three models, batches 32 to 768, layouts that fit and layouts that are 22 % wrong. The optimum is a
mixed-integer program solved to 0.1 %; ratios are to its proven lower bound."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from time import perf_counter

import numpy as np

from benchmarks.tri_layers import Case, cases
from moesaic.policies.tri.costs import CONTENTION
from moesaic.policies.tri.exact import linear_bound, optimal
from moesaic.policies.tri.fast import KICKS, ROUNDS, balanced
from moesaic.policies.tri.layer import Ints, Options, makespan, options_of
from moesaic.policies.tri.refine import REFINE, greedy, trimoe

SCHEDULES: dict[str, Callable[[Options], Ints]] = {
    "greedy": greedy,
    "trimoe": lambda options: trimoe(options, REFINE),
    "trimoe, candidates=1": lambda options: trimoe(options, REFINE, 1),
    "tri-balanced": lambda options: balanced(options, ROUNDS, KICKS)[0],
}
REPEATS = 5


def measured(case: Case) -> dict[str, tuple[float, float]]:
    """Of every schedule: makespan over the lower bound of all choices, and milliseconds."""
    _, layer = case.layout.active(case.costs, case.loads)
    options = options_of(case.costs, layer)
    best, bound = optimal(options)
    found = {
        "optimal": (makespan(options, best) / bound, 0.0),
        "linear bound": (linear_bound(options) / bound, 0.0),
    }
    for name, schedule in SCHEDULES.items():
        times = []
        for _ in range(REPEATS):
            start = perf_counter()
            choice = schedule(options_of(case.costs, layer))
            times.append(1e3 * (perf_counter() - start))
        found[name] = (makespan(options, choice) / bound, min(times))
    return found


def rows(layers: int, contention: str, shared: bool, seed: int) -> list[dict[str, object]]:
    groups: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for case in cases(layers, contention, shared, seed):
        layout = f"{case.wrong:.0%} wrong" if case.wrong else "right"
        for name, value in measured(case).items():
            groups["all", "all", name].append(value)
            groups[case.model.name, layout, name].append(value)
    found: list[dict[str, object]] = []
    for (model, layout, name), values in groups.items():
        ratio, ms = np.array(values).T
        summary = {"mean": ratio.mean(), "max": ratio.max(), "ms": ms.mean(), "ms_max": ms.max()}
        numbers = {key: float(value) for key, value in summary.items()}
        found.append({"model": model, "layout": layout, "schedule": name, **numbers})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--contention", choices=list(CONTENTION), default="own-share")
    parser.add_argument("--unshared", action="store_true", help="host bandwidth as in the paper")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = rows(asked.layers, asked.contention, not asked.unshared, asked.seed)
    if asked.json:
        print(json.dumps(found, indent=2))
        return
    for row in found:
        print(
            f"{row['model']:16} {row['layout']:10} {row['schedule']:20} mean {row['mean']:.4f}  "
            f"max {row['max']:.4f}  {row['ms']:.2f} ms, at most {row['ms_max']:.2f}"
        )


if __name__ == "__main__":
    main()
