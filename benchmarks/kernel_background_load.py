"""How much of the machine other programs used while something was measured.

Two busy processes on two cores halve every number of a benchmark; a reader should know."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
IDLE = (3, 4)  # of a line's fields: idle, waiting for a disk
COUNTED = 8  # fields up to stolen time; guests' time is in them already


@dataclass(frozen=True, slots=True)
class CpuTimes:
    wall_s: float
    busy_s: float  # all programs', and what other guests of the host took
    own_s: float  # this process's, and that of those it has waited for
    cores: int


def now(stat: Path = STAT) -> CpuTimes | None:
    """None where the system does not say."""
    try:
        lines = stat.read_text().splitlines()
        total = [int(field) for field in lines[0].split()[1 : COUNTED + 1]]
    except (OSError, ValueError, IndexError):
        return None
    busy = sum(ticks for index, ticks in enumerate(total) if index not in IDLE)
    cores = sum(line.startswith("cpu") for line in lines) - 1
    own = os.times()
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return CpuTimes(time.monotonic(), busy / ticks_per_s, sum(own[:4]), cores)


def others_share(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    """Of the machine's time in between, what others used."""
    if before is None or after is None or after.wall_s <= before.wall_s:
        return None
    others = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return max(0.0, others / (after.cores * (after.wall_s - before.wall_s)))
