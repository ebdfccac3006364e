"""What a simulated sub-channel reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from moesaic.machines.sim.dram.timing import Timing


@dataclass(frozen=True)
class DramResult:
    timing: Timing = field(repr=False)
    requests: int
    cycles: int  # the last completion
    latency_nck: float  # mean, from arrival to complete data
    hit_rate: float  # share of requests that needed no ACT of their own
    commands: int  # issued, of all kinds

    @property
    def bytes(self) -> int:
        return self.requests * self.timing.geometry.request_bytes

    @property
    def bandwidth_gb_s(self) -> float:
        return self.timing.bandwidth_gb_s(self.bytes, self.cycles)

    @property
    def seconds(self) -> float:
        return self.timing.nanoseconds(self.cycles) * 1e-9

    def as_dict(self) -> dict[str, Any]:
        return {
            "cycles": self.cycles,
            "bandwidth_gb_s": self.bandwidth_gb_s,
            "latency_nck": self.latency_nck,
            "hit_rate": self.hit_rate,
        }
