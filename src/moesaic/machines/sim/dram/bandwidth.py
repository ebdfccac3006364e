"""The table that machine models read: bytes per second of streaming one block (an expert) from
memory, by its reader and by how many ranks hold it.

- `host`: over sub-channels whose ranks share one data bus.
- `ndp`: inside the DIMM, every rank over a command and a data path of its own.
- `ndp-shared-commands`: a data path per rank, but one command bus per sub-channel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.machines.sim.dram.memory_system import simulate_all, split_by_rank
from moesaic.machines.sim.dram.named_patterns import named_pattern
from moesaic.machines.sim.dram.simulate import IN_FLIGHT
from moesaic.machines.sim.dram.timing import Timing

HOST, NDP, NDP_SHARED_COMMANDS = READERS = ("host", "ndp", "ndp-shared-commands")


@dataclass(frozen=True)
class StreamBandwidth:
    reader: str
    ranks: int  # per sub-channel
    sub_channels: int
    moved_bytes: int  # whole requests
    seconds: float
    bytes_per_s: float
    peak_bytes_per_s: float  # of all data buses involved
    hit_rate: float

    @property
    def efficiency(self) -> float:
        return self.bytes_per_s / self.peak_bytes_per_s


def stream_bandwidth(
    timing: Timing,
    moved_bytes: int,
    reader: str = HOST,
    *,
    ranks: int = 1,
    sub_channels: int = 1,
    in_flight: int = IN_FLIGHT,
    refresh: bool = True,
) -> StreamBandwidth:
    """Stream a block that lies evenly over sub-channels and ranks. `in_flight` requests per path:
    per sub-channel for a host, per rank for an NDP unit."""
    if reader not in READERS:
        raise UnknownName("reader", reader, READERS)
    if moved_bytes < 1 or sub_channels < 1:
        raise ImpossibleSetting("streaming needs at least one byte and one sub-channel")
    memory = timing.with_ranks(ranks)
    size = memory.geometry.request_bytes
    requests = -(-moved_bytes // (size * sub_channels))
    name = "stream-rank-rows" if reader == HOST else "stream-ranks"
    block = named_pattern(name, memory.geometry, requests)
    if reader == NDP:
        own, patterns = split_by_rank(memory, block)
        result = simulate_all(own, patterns, in_flight, refresh=refresh)
    else:
        host = reader == HOST
        waiting = in_flight if host else in_flight * ranks
        result = simulate_all(memory, [block], waiting, refresh=refresh, shared_bus=host)
    return StreamBandwidth(
        reader=reader,
        ranks=ranks,
        sub_channels=sub_channels,
        moved_bytes=result.bytes * sub_channels,
        seconds=memory.nanoseconds(result.cycles) * 1e-9,
        bytes_per_s=result.bandwidth_gb_s * 1e9 * sub_channels,
        peak_bytes_per_s=memory.peak_gb_s * 1e9 * sub_channels * (1 if reader == HOST else ranks),
        hit_rate=result.hit_rate,
    )


def bandwidth_table(
    timing: Timing,
    moved_bytes: int,
    *,
    readers: Iterable[str] = READERS,
    ranks: Iterable[int] = (1, 2, 4),
    sub_channels: int = 2,
    in_flight: int = IN_FLIGHT,
    refresh: bool = True,
) -> list[StreamBandwidth]:
    """Every reader with every number of ranks; two sub-channels are one DIMM."""
    counts = list(ranks)
    return [
        stream_bandwidth(
            timing,
            moved_bytes,
            reader,
            ranks=count,
            sub_channels=sub_channels,
            in_flight=in_flight,
            refresh=refresh,
        )
        for reader in readers
        for count in counts
    ]
