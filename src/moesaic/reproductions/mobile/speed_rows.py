"""Rows of measured speed: the bundled model here, without accelerator and with an emulated one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from moesaic.policies.gate import FULL
from moesaic.reproductions.mobile.quality_runs import HALF
from moesaic.reproductions.mobile.speed_runs import (
    CACHE_RATIO,
    CPU,
    EMULATED,
    MACHINES,
    SLOW_GB_S,
    SLOW_LINK,
    Speed,
    measured_speeds,
)
from moesaic.reproductions.row import Row

PREFIX = "measured"
GATES = {
    "full": FULL,
    "gamma=0": f"little:k={HALF}",
    "gamma=0.7": f"big-little:k={HALF}",
    "gamma=0.99": f"big-little:gamma=0.99,k={HALF}",
}
_PAPER = {"gamma=0": 1.85, "gamma=0.7": 1.57}
_WHERE = {
    CPU: "CPU only",
    EMULATED: f"emulated accelerator with {CACHE_RATIO:.0%} of the experts, default policies",
    SLOW_LINK: (
        f"emulated accelerator with {CACHE_RATIO:.0%} of the experts, loaded on demand (gpu-only "
        f"+ lru + none) over a link of {SLOW_GB_S:g} GB/s, so that transfers decide, as on the "
        "paper's machine"
    ),
}
Speeds = Mapping[str, Mapping[str, Speed]]  # machine, gate


def ids() -> list[str]:
    return [f"{PREFIX}/{machine}/{name}" for machine in MACHINES for name in GATES]


def measure_all(
    problems: int, repetitions: int, advance: Callable[[int], None]
) -> dict[str, dict[str, Speed]]:
    gates = list(GATES.values())
    return {
        machine: measured_speeds(machine, gates, problems, repetitions, advance)
        for machine in MACHINES
    }


def speed_rows(found: Speeds, problems: int) -> list[Row]:
    rows: list[Row] = []
    for machine, speeds in found.items():
        full = speeds[FULL]
        for name, gate in GATES.items():
            speed = speeds[gate]
            slow, fast = min(speed.repetitions), max(speed.repetitions)
            conditions = (
                f"measured here: {_WHERE[machine]}; moesaic-20m, fp32, one text at a time, "
                f"{problems} problems in {len(speed.repetitions)} repetitions: "
                f"{speed.tokens_per_s:.1f} tokens/s ({slow:.1f} to {fast:.1f})"
            )
            rows.append(
                Row(
                    f"{PREFIX}/{machine}/{name}", f"{gate}: speedup over all experts",
                    _PAPER.get(name), speed.tokens_per_s / full.tokens_per_s, "x", conditions,
                    f"moesaic reproduce mobile --only {PREFIX}/{machine}",
                )
            )  # fmt: skip
    return rows
