"""A timing set: the clock, the geometry of one sub-channel, and its timing rules in cycles.

Values only, checked against each other; `timing_file.py` reads them from TOML with their sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from moesaic.core.errors import ImpossibleSetting

MOST_RANKS = 32
MOST_CYCLES = 1 << 16  # of one rule; the scheduler packs waits into 20 bits


class BadTiming(ImpossibleSetting):
    """Numbers that no memory could have: which field, and what was expected."""

    def __init__(self, name: str, expected: str) -> None:
        super().__init__(f"{name}: {expected}")
        self.name = name
        self.expected = expected


@dataclass(frozen=True)
class Geometry:
    data_bits: int  # of the data bus
    request_bytes: int  # one burst
    ranks: int
    bank_groups: int  # per rank
    banks: int  # per bank group
    rows: int  # per bank
    columns: int  # per row, each of request_bytes

    @property
    def banks_per_rank(self) -> int:
        return self.bank_groups * self.banks


class Rules(NamedTuple):
    """Cycles between commands. A tuple of integers, so that compiled code takes it as it is."""

    nrcd: int  # ACT to RD/WR, same bank
    nrp: int  # PRE to ACT, same bank
    nras: int  # ACT to PRE, same bank
    nrc: int  # ACT to ACT, same bank
    ncl: int  # RD to its first data
    ncwl: int  # WR to its first data
    nbl: int  # data bus cycles of one burst
    nccd_s: int  # RD to RD and WR to WR, other bank group of the rank
    nccd_l: int  # RD to RD, same bank group
    nccd_l_wr: int  # WR to WR, same bank group
    nrtw: int  # RD to WR, same rank
    nwtr_s: int  # end of write data to RD, other bank group of the rank
    nwtr_l: int  # end of write data to RD, same bank group
    nrrd_s: int  # ACT to ACT, other bank group of the rank
    nrrd_l: int  # ACT to ACT, same bank group
    nfaw: int  # window that holds at most four ACTs of a rank
    nwr: int  # end of write data to PRE, same bank
    nrtp: int  # RD to PRE, same bank
    nrfc: int  # REF to ACT or REF, same rank
    nrefi: int  # one REF per rank falls due every so many cycles
    rank_switch: int  # idle data bus cycles between bursts of two ranks
    command_act: int  # command bus cycles of each command
    command_rd: int
    command_wr: int
    command_pre: int
    command_ref: int


@dataclass(frozen=True)
class Timing:
    name: str
    title: str
    rate_mt_s: int
    geometry: Geometry
    rules: Rules
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        _check_ranges(self)
        _check_rules(self.geometry, self.rules)

    @property
    def clock_ghz(self) -> float:
        return self.rate_mt_s / 2000

    @property
    def peak_gb_s(self) -> float:
        """What the data bus carries when it never idles."""
        return self.bandwidth_gb_s(self.geometry.request_bytes, self.rules.nbl)

    def bandwidth_gb_s(self, moved_bytes: int, cycles: int) -> float:
        return moved_bytes * self.clock_ghz / cycles

    def nanoseconds(self, cycles: float) -> float:
        return cycles / self.clock_ghz

    def with_ranks(self, ranks: int) -> Timing:
        """The same memory with another number of ranks on the sub-channel."""
        return replace(self, geometry=replace(self.geometry, ranks=ranks))

    def with_rules(self, **rules: int) -> Timing:
        return replace(self, rules=self.rules._replace(**rules))


def _check_ranges(timing: Timing) -> None:
    numbers: dict[str, Any] = {"rate_mt_s": timing.rate_mt_s, **vars(timing.geometry)}
    for name, value in numbers.items():
        if value < 1:
            raise BadTiming(name, f"expected a whole number of 1 or more, not {value}")
    if timing.geometry.ranks > MOST_RANKS:
        raise BadTiming("ranks", f"at most {MOST_RANKS} share a sub-channel")
    for name, value in timing.rules._asdict().items():
        least = 0 if name in ("rank_switch", "nwtr_s", "nwtr_l") else 1
        if not least <= value < MOST_CYCLES:
            raise BadTiming(name, f"expected {least} to {MOST_CYCLES - 1} cycles, not {value}")


def _check_rules(geometry: Geometry, rules: Rules) -> None:
    if geometry.request_bytes * 8 != geometry.data_bits * 2 * rules.nbl:
        carried = geometry.data_bits * 2 * rules.nbl // 8
        raise BadTiming("nbl", f"{rules.nbl} cycles carry {carried} B, not one request")
    pairs = [("nccd_s", "nbl"), ("nccd_l", "nccd_s"), ("nccd_l_wr", "nccd_s")]
    pairs += [("nrrd_l", "nrrd_s"), ("nwtr_l", "nwtr_s"), ("nrc", "nras")]
    for larger, smaller in pairs:
        low = getattr(rules, smaller)
        if getattr(rules, larger) < low:
            raise BadTiming(larger, f"expected at least {smaller}, which is {low}")
    if rules.nrtw < rules.ncl - rules.ncwl + rules.nbl:
        raise BadTiming("nrtw", "a write's data would meet the data of the read before it")
    closing = max(rules.nras, rules.nrcd + max(rules.nrtp, rules.ncwl + rules.nbl + rules.nwr))
    busy = rules.nrfc + closing + rules.nrp + geometry.ranks * geometry.banks_per_rank
    if rules.nrefi <= busy:
        raise BadTiming("nrefi", f"refreshing would leave no time to read: expected over {busy}")
