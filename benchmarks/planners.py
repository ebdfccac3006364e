"""How long deciding one layer takes, for every schedule: `python -m benchmarks.planners`.

The whole call is timed, from the layer's table of active experts to the finished assignment as
Python values; the median of many calls counts. Targets: `hybrid` in at most 10 us for 8 active
experts (one decoded token) and 150 us for 64 active experts at batch 512; a whole decision of the
brain, under HybriMoE's policies and under the default system with its one pool of slots, in 10, 60
and 200 us at batch 1, 64 and 256, its look-ahead in 30 and 300 us at batch 1 and
64. What `learned-mixture` costs is listed beside the default's cache."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from statistics import median

from benchmarks.inputs import decision_times_us, decode_layer
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.schedule import schedules
from moesaic.policies.schedule.optimal import EXHAUSTIVE
from moesaic.policies.systems import load_system

CASES = {
    "8 active experts, batch 1": decode_layer(experts=64, active=8, tokens=1),
    "64 active experts, batch 512": decode_layer(experts=64, active=64, tokens=512),
}
RUNS = (
    ("deepseek-v2-lite", 1, 64),
    ("deepseek-v2-lite", 8, 24),
    ("deepseek-v2-lite", 64, 8),
    ("qwen3-30b-a3b", 1, 32),
    ("qwen3-30b-a3b", 256, 4),
)
BRAIN_TARGETS_US = {
    "decision": {1: 10.0, 64: 60.0, 256: 200.0},
    "look-ahead": {1: 30.0, 64: 300.0},
}
# what the brain runs -> its policies
BRAINS = {
    "hybrimoe": load_system("hybrimoe").policies,
    "default": PolicySet(),
    "learned-mixture": PolicySet.of(cache="learned-mixture:pool=global"),
}
TARGETS_US = {"8 active experts, batch 1": 10.0, "64 active experts, batch 512": 150.0}


def microseconds(call: Callable[[], object], repeat: int = 2000, budget_s: float = 1.0) -> float:
    """Median time of a call, as many repetitions as fit."""
    call()
    times: list[int] = []
    end = time.perf_counter() + budget_s
    while len(times) < repeat and (len(times) < 5 or time.perf_counter() < end):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return median(times) / 1000


def time_schedules() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for (case, work), name in product(CASES.items(), schedules):
        if name == "optimal" and work.n > EXHAUSTIVE:
            continue  # a solver: seconds
        schedule = schedules.create(name)
        rows.append(
            {
                "case": case,
                "what": f"schedule {name}",
                "median_us": microseconds(partial(schedule.assign, work)),
                "target_us": TARGETS_US[case] if name == "hybrid" else None,
            }
        )
    return rows


def time_brain() -> list[dict[str, object]]:
    """The brain in a run: the decision, which the layer waits for, and the look-ahead (prefetches
    and promotions), which is thought out while the layer runs. From Python, values in and values
    out; and as the C function that a native conductor calls on its filled buffer."""
    rows: list[dict[str, object]] = []
    for (label, policies), (model, batch, steps), native in product(
        BRAINS.items(), RUNS, (False, True)
    ):
        measured = decision_times_us(model, batch, steps, native, policies)
        for what, times in zip(("decision", "look-ahead"), measured, strict=True):
            rows.append(
                {
                    "case": f"{model}, batch {batch}",
                    "what": f"{label}: {what}" + (", C function" if native else ""),
                    "median_us": median(times),
                    "target_us": BRAIN_TARGETS_US[what].get(batch),
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    rows = [*time_schedules(), *time_brain()]
    if parser.parse_args().json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        target = f"  (target {row['target_us']:g} us)" if row["target_us"] else ""
        print(f"{row['case']:30} {row['what']:38} {row['median_us']:10.1f} us{target}")


if __name__ == "__main__":
    main()
