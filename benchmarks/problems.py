"""How many problems a second of one core makes: `python -m benchmarks.problems`.

Training reads millions of them, so they must cost less than the training step that eats them. CPU
time is counted, so that a busy machine does not matter much.
Target: 20,000 per second; a split with fewer than 5,000 would have to be prepared beforehand."""

from __future__ import annotations

import argparse
import json
import time
from itertools import product

from training.problems import KINDS, SPLITS, generate

TARGET_PER_S = 20_000


def per_second(split: str, kinds: tuple[str, ...], count: int) -> float:
    for _ in generate(split, 0, 1000, kinds):
        pass  # templates are read and compiled on first use
    start = time.process_time()
    for _ in generate(split, 1, count, kinds):
        pass
    return count / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = [
        {"split": split, "kinds": ",".join(kinds), "per_s": per_second(split, kinds, asked.count)}
        for split, kinds in product(SPLITS, [KINDS, *((kind,) for kind in KINDS)])
    ]
    if asked.json:
        print(json.dumps({"target_per_s": TARGET_PER_S, "rows": rows}, indent=2))
        return
    for row in rows:
        what = "all kinds" if row["kinds"] == ",".join(KINDS) else row["kinds"]
        print(f"{row['split']:20} {what:12} {row['per_s']:8,.0f} problems/s")


if __name__ == "__main__":
    main()
