"""What `benchmarks.load` has found: medians over rounds, ratios within rounds, as tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from moesaic.cli.shared.output import print_table
from moesaic.hardware.host import usable_cores

OURS = "this"
RATES = ("output_tok_s", "total_tok_s")
CPU = "cpu_ms_token"  # of all threads; on a busy machine it varies less than rates do
TIMES = ("ttft_ms", "tpot_ms", "gap_ms")
MEMORY = ("idle", "peak", "gpu")
COUNTERS = ("cached_tokens", "failed_steps", "queue.", "kv", "blocks.")  # parts of names


@dataclass(frozen=True, slots=True)
class Round:
    """What all contenders have measured with one workload, one after another."""

    requests: int
    found: dict[str, dict[str, Any]]


def report(
    rounds: Sequence[Round],
    engine: dict[str, Any],
    workloads: Sequence[dict[str, Any]],
    options: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """`options` are those that every contender uses."""
    counts = dict.fromkeys(each.requests for each in rounds)
    rows = [row for count in counts for row in rows_of([r for r in rounds if r.requests == count])]
    return {
        "command": ["python", "-m", "benchmarks.load", *sys.argv[1:]],
        "cores": usable_cores(),
        "engine": engine,
        "workloads": list(workloads),
        "options": options,
        "rows": rows,
        "rounds": [asdict(each) for each in rounds],
    }


def rows_of(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """A row for every contender with one workload."""
    return [
        {
            "requests": rounds[0].requests,
            "name": name,
            "medians": medians([values(each.found[name]) for each in rounds]),
            "ratios": None if name == OURS else ratios(rounds, name),
            "failed": sum(len(each.found[name].get("failed", ())) for each in rounds),
        }
        for name in rounds[0].found
    ]


def values(found: dict[str, Any]) -> dict[str, float]:
    """All numbers of a turn that are compared or shown, under flat names."""
    flat = {name: found[name] for name in (*RATES, CPU) if name in found}
    for name in TIMES:
        flat |= {f"{name}.{share}": time for share, time in (found.get(name) or {}).items()}
    memory = found.get("memory_gb") or {}
    flat |= {f"memory_gb.{name}": memory[name] for name in MEMORY if memory.get(name) is not None}
    for name, value in (found.get("stats") or {}).items():
        if any(part in name for part in COUNTERS):
            flat[f"stats.{name}"] = value
    return flat


def medians(turns: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of memory, what the first round took: later ones find what larger workloads have left."""
    return {
        name: first if name.startswith("memory_gb.") else median(each[name] for each in turns)
        for name, first in turns[0].items()
    }


def ratios(rounds: Sequence[Round], other: str) -> dict[str, Any]:
    """Ours over theirs in every round, and the median: above 1, our rates are higher or our times
    longer."""
    found = {}
    pairs = [(values(each.found[OURS]), values(each.found[other])) for each in rounds]
    for name in pairs[0][0]:
        both = [(a[name], b[name]) for a, b in pairs if b.get(name)]
        if len(both) == len(pairs) and not name.startswith("stats."):
            each = [ours / theirs for ours, theirs in both]
            found[name] = {"median": median(each), "rounds": each}
    return found


def print_report(result: dict[str, Any]) -> None:
    rows, rounds = result["rows"], len(result["rounds"])
    for name, options in result["options"].items():
        print(f"{name}: {', '.join(f'{option} {value}' for option, value in options.items())}")
    each = rounds // len({row["requests"] for row in rows})
    print_table(
        f"Medians of {each} rounds; times in ms, memory in GB",
        ("requests", "who", "out tok/s", "all tok/s", "TTFT p50", "p99", "TPOT p50", "p99",
         "gap p99", "CPU/token", "RSS idle", "peak", "GPU", "failed"),
        [_measured(row) for row in rows],
    )  # fmt: skip
    compared = [row for row in rows if row["ratios"]]
    if compared:
        print_table(
            f"{OURS} over the other, within rounds: the median, and output rates of every round",
            ("requests", "other", "out tok/s", "TTFT p50", "p99", "TPOT p50", "p99",
             "CPU/token", "peak", "out tok/s by round"),
            [_compared(row) for row in compared],
        )  # fmt: skip
    for row in rows:
        counted = {n[6:]: v for n, v in row["medians"].items() if n.startswith("stats.") and v}
        if counted:
            words = ", ".join(f"{name} {value:,.0f}" for name, value in counted.items())
            print(f"{row['requests']} requests, {row['name']}: {words}")


_TIMES = tuple(f"{name}.{share}" for name in TIMES[:2] for share in ("p50", "p99"))


def _measured(row: dict[str, Any]) -> list[str | None]:
    found = row["medians"]
    names = (*RATES, *_TIMES, "gap_ms.p99", CPU)
    memory = [_number(found.get(f"memory_gb.{name}"), 2) for name in MEMORY]
    return [
        *(str(row["requests"]), row["name"]),
        *(_number(found.get(name), 1) for name in names),
        *memory,
        str(row["failed"]) if row["failed"] else None,
    ]


def _compared(row: dict[str, Any]) -> list[str | None]:
    found = row["ratios"]
    names = ("output_tok_s", *_TIMES, CPU, "memory_gb.peak")
    rounds = " ".join(f"{ratio:.2f}" for ratio in found["output_tok_s"]["rounds"])
    middle = [_number(found.get(name, {}).get("median"), 2) for name in names]
    return [str(row["requests"]), row["name"], *middle, rounds]


def _number(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"
