"""How many requests per second the DRAM simulator serves: `python -m benchmarks.dram`.

At least 2 million per second on one core, for 32 and 64 requests in flight."""

from __future__ import annotations

import argparse
import json
import time

from moesaic.machines.sim.dram.named_patterns import PATTERNS, named_pattern
from moesaic.machines.sim.dram.simulate import simulate
from moesaic.machines.sim.dram.timing_file import load_timing

REQUESTS = 400_000
REPEATS = 3
TARGET = 2.0


def millions_per_s(pattern: str, in_flight: int) -> float:
    """The best of a few repeats, in seconds of this process: other programs may be running."""
    timing = load_timing("ddr5-4800-trimoe")
    requests = named_pattern(pattern, timing.geometry, REQUESTS)
    best = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        simulate(timing, requests, in_flight)
        best = min(best, time.process_time() - start)
    return REQUESTS / best / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    millions_per_s("stream", 1)  # compiles
    rows = [
        {"pattern": name, "in_flight": width, "million_requests_s": millions_per_s(name, width)}
        for name in PATTERNS
        for width in (32, 64)
    ]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        rate = float(str(row["million_requests_s"]))
        note = "" if rate >= TARGET else f"  (target {TARGET:g})"
        print(f"{row['pattern']:18} W {row['in_flight']:3} {rate:7.2f} million requests/s{note}")


if __name__ == "__main__":
    main()
