"""Several sub-channels at once, each with its own buses and pattern: a DIMM's two, a host's
sixteen, or ranks that are read through paths of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moesaic.core.errors import ImpossibleSetting
from moesaic.machines.sim.dram.pattern import Pattern
from moesaic.machines.sim.dram.result import DramResult
from moesaic.machines.sim.dram.simulate import IN_FLIGHT, simulate
from moesaic.machines.sim.dram.timing import Timing


@dataclass(frozen=True)
class SystemResult:
    """Sub-channels that start together and do not wait for each other."""

    parts: tuple[DramResult, ...]

    @property
    def cycles(self) -> int:
        return max(part.cycles for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def bandwidth_gb_s(self) -> float:
        return self.parts[0].timing.bandwidth_gb_s(self.bytes, self.cycles)

    @property
    def latency_nck(self) -> float:
        return self._mean([part.latency_nck for part in self.parts])

    @property
    def hit_rate(self) -> float:
        return self._mean([part.hit_rate for part in self.parts])

    def _mean(self, values: Sequence[float]) -> float:
        """The mean over requests."""
        weighted = sum(v * part.requests for v, part in zip(values, self.parts, strict=True))
        return weighted / sum(part.requests for part in self.parts)


def simulate_all(
    timing: Timing,
    patterns: Sequence[Pattern],
    in_flight: int = IN_FLIGHT,
    *,
    refresh: bool = True,
    shared_bus: bool = True,
) -> SystemResult:
    """One sub-channel per pattern; `in_flight` of each."""
    if not patterns:
        raise ImpossibleSetting("no sub-channels: give at least one pattern")
    return SystemResult(
        tuple(
            simulate(timing, each, in_flight, refresh=refresh, shared_bus=shared_bus)
            for each in patterns
        )
    )


def split_by_rank(timing: Timing, pattern: Pattern) -> tuple[Timing, list[Pattern]]:
    """Each rank of a sub-channel as a sub-channel of its own: an NDP unit that reads all ranks
    at once has a command and a data path to each."""
    own = []
    for rank in range(timing.geometry.ranks):
        mine = pattern.only(pattern.rank == rank)
        if len(mine):
            own.append(mine.on_rank(0))
    return timing.with_ranks(1), own
