"""What a captured step leaves in memory: times by the conductor's clock and by the GPU's, and how
the two are set against each other."""

from __future__ import annotations

from typing import NamedTuple

from moesaic.machines.captured.conductor import CopyTimes, LayerTimes, LayerWork
from moesaic.machines.captured.stamps import StepStamps


class CapturedStep(NamedTuple):
    """`started_ns` and `ended_ns` are the caller's; all times but the stamps are the host's."""

    started_ns: int
    ended_ns: int
    tokens: int
    stamps: StepStamps
    times: list[LayerTimes]
    work: list[LayerWork]
    copies: list[CopyTimes]


class ClockBounds(NamedTuple):
    """What has to be added to a stamp to have the host's time, at least and at most."""

    least: int
    most: int

    @property
    def offset(self) -> int:
        return (self.least + self.most) // 2

    @property
    def uncertainty_ns(self) -> int:
        return abs(self.most - self.least) // 2


def clock_bounds(step: CapturedStep) -> ClockBounds:
    """No flag is seen before it is set. The GPU's routing was seen by the conductor after the
    GPU's stamp; a plan and a sum were seen by the GPU after the conductor's time: every layer
    bounds the offset from both sides, and the narrowest bounds count."""
    stamps = step.stamps
    layers = list(zip(step.times, stamps.layers, strict=True))
    least = [step.started_ns - stamps.begun]
    least += [host.publishing - gpu.planned for host, gpu in layers]
    least += [host.summing - gpu.summed for host, gpu in layers]
    most = [step.ended_ns - stamps.ended]
    most += [host.routed - gpu.routed for host, gpu in layers]
    return ClockBounds(max(least), min(most))
