"""What a user would run instead, by our own implementation of it: on the same weights, kernels and
memory, so that only the strategy differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.engine_settings import EngineSettings
from moesaic.policies.systems import load_system

# System -> the strategy that it stands for.
COMPARED = {
    "ktransformers": "static-experts",
    "n-cpu-moe": "llama.cpp --n-cpu-moe",
    "adapmoe": "gpu-only",
    "fiddler": "threshold",
    "llama.cpp": "static-layers",
}


class Compared(NamedTuple):
    systems: list[str]  # one's own first
    left_out: list[str]  # why others are not there


def compared_systems(own: Sequence[str], settings: EngineSettings) -> Compared:
    """`own` and all that this machine can run of the others."""
    if not settings.capabilities.moves:
        raise ImpossibleSetting(
            "--compare compares who computes which expert, and without an accelerator the CPU "
            "computes all of them: add --accelerator cuda (or emulated)"
        )
    found, left_out = list(own), []
    for system, strategy in COMPARED.items():
        if system in own:
            continue
        try:
            settings.with_system(load_system(system))
        except ImpossibleSetting as error:
            left_out.append(f"{system} ({strategy}): {error}")
        else:
            found.append(system)
    return Compared(found, left_out)


def speedups(own: str, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """By test and cache ratio: how many times as fast as each of the others one's own is. `rows`
    as `bench --json` has them, other programs' included."""
    for test, ratio in dict.fromkeys((row["test"], row["cache_ratio"]) for row in rows):
        here = [row for row in rows if (row["test"], row["cache_ratio"]) == (test, ratio)]
        speeds = {row.get("system", row.get("program")): row["tokens_per_s"] for row in here}
        if own not in speeds:
            continue
        times = (f"{speeds[own] / v:.2f} x {n}" for n, v in speeds.items() if n != own)
        yield f"{test} at {ratio:.0%}: {own} is {', '.join(times)}"
