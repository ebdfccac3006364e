"""The rows of docs/hybrimoe.md's measured tables, from the results of
`moesaic reproduce hybrimoe --measured --json`: python -m benchmarks.measured_placement FILE..."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RATIOS = (0.25, 0.5, 0.75)
SYSTEMS = ("moesaic", "hybrimoe", "ktransformers", "adapmoe")  # in the order of the columns
RESULTS = Path(__file__).parent / "results" / "hybrimoe"


def rows(result: dict[str, Any]) -> list[str]:
    """One Markdown row per number of threads and length of the profile."""
    cells = {(r["threads"], r["profile_tokens"]): r["host_gb_s"] for r in result["rows"]}
    return [_row(result, threads, profile, host) for (threads, profile), host in cells.items()]


def _row(result: dict[str, Any], threads: int, profile: int, host: float) -> str:
    found = {
        (r["system"], r["cache_ratio"]): r
        for r in result["rows"]
        if (r["threads"], r["profile_tokens"]) == (threads, profile)
    }

    def line(system: str, what: str, form: str) -> str:
        return " / ".join(f"{found[system, ratio][what]['median']:{form}}" for ratio in RATIOS)

    speeds = [line(system, "tokens_per_s", ".0f") for system in SYSTEMS]
    peers = {p["cache_ratio"]: p for p in result["peers"] if p["threads"] == threads}
    if peers:
        speeds.append(" / ".join(f"{peers[ratio]['tokens_per_s']:.0f}" for ratio in RATIOS))
    over = [line(system, "over_static", ".2f") for system in SYSTEMS[:2]]
    parts = (f"{threads}, {host:.0f} GB/s", f"{profile:,}", *speeds, *over)
    return f"| {' | '.join(parts)} |"


def main() -> None:
    for name in sys.argv[1:]:
        print("\n".join(rows(json.loads(Path(name).read_text()))))


if __name__ == "__main__":
    main()
