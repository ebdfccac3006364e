"""How fast memory is: streaming reads by so many threads, and copies over a link, alone and while
the CPU computes in parallel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from threading import Event

import torch

from moesaic.core.layer_plan import Move
from moesaic.core.units import GB, NS_PER_S
from moesaic.hardware.caches import stream_bytes
from moesaic.lab.profile.timing import line_through, min_ns, on_lane
from moesaic.machines.real.copy_engine import Copy, CopyEngine, LinkSpeed
from moesaic.machines.real.lane import Job, Lane

_COPIES = (1 << 20, 16 << 20)  # bytes of a small and a large copy


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """`overlapped`: measured while the CPU computes experts; `cpu_slowdown`: how many times longer
    those experts took meanwhile."""

    latency_us: float
    bandwidth_gb_s: float
    overlapped_gb_s: float
    cpu_slowdown: float
    copying: float  # share of a core that copies take


def stream_gb_s(lane: Lane) -> float:
    """Reading more memory than caches hold from end to end, nothing else: the best of several, as
    it is a ceiling."""
    buffer = torch.ones(stream_bytes() // 8, dtype=torch.float64)

    def read() -> None:
        buffer.sum()

    best = min(min_ns(on_lane(lane, lambda _: read), times=1) for _ in range(5))
    return float(buffer.nbytes / best * NS_PER_S / GB)


def measure_link(speed: LinkSpeed, cpu: Lane, compute: Job) -> LinkTimes:
    """`compute` is some work for the CPU lane, repeated while copies run."""
    engine = CopyEngine(speed)
    try:
        alone = [(size, _copy_us(engine, size)) for size in _COPIES]
        latency, us_per_byte = line_through(alone)
        usual = min_ns(on_lane(cpu, lambda _: compute))
        slowed, overlapped = _together(engine, cpu, compute)
    finally:
        engine.close()
    return LinkTimes(
        latency,
        1e6 / us_per_byte / GB,
        _COPIES[1] / overlapped * NS_PER_S / GB,
        slowed / usual,
        min(1e6 / us_per_byte / GB / _memcpy_gb_s(cpu), 1.0),
    )


def _memcpy_gb_s(lane: Lane) -> float:
    """How fast a core copies when nothing holds it back."""
    copies = [_copy(_COPIES[1]) for _ in range(8)]

    def make(attempt: int) -> Job:
        def move() -> None:
            copies[attempt].target.copy_(copies[attempt].source)

        return move

    return _COPIES[1] / min_ns(on_lane(lane, make)) * NS_PER_S / GB


def _copy(size: int) -> Copy:
    source, target = (torch.ones(size, dtype=torch.uint8) for _ in range(2))
    return Copy(Move(0, 0), source, target, "transfer")


def _copy_us(engine: CopyEngine, size: int) -> float:
    copies = [_copy(size) for _ in range(8)]

    def work(attempt: int) -> None:
        engine.demand([copies[attempt]])
        copies[attempt].wait()

    return min_ns(work) / NS_PER_S * 1e6


def _together(engine: CopyEngine, cpu: Lane, compute: Job) -> tuple[int, int]:
    """Nanoseconds of the CPU's work while copies go on, and of a copy while the CPU works."""
    pairs = [_copy(_COPIES[1]) for _ in range(4)]
    running = [replace(pairs[i % 4], arrived=Event()) for i in range(64)]
    engine.demand(running)
    slowed = min_ns(on_lane(cpu, lambda _: compute))
    meanwhile = [copy for copy in running if copy.arrived.is_set()]
    for copy in running:
        copy.wait()
    durations = [copy.end_ns - copy.start_ns for copy in meanwhile or running[:1]]
    return slowed, round(median(durations))
