"""The systems TriMoE is compared with, over the same costs: tri/baselines.py."""

from __future__ import annotations

from moesaic.policies.schedule.tri import OWN_SHARE, TriSchedule
from moesaic.policies.tri import baselines
from moesaic.policies.tri.layer import Bools, Ints, Options


class Klotski(TriSchedule):
    needs_units = False
    devices = baselines.GPU_ONLY

    def __init__(
        self, contention: str = OWN_SHARE, shared: bool = True, pipelined: bool = True
    ) -> None:
        super().__init__(contention, shared, pipelined)

    def choose(self, options: Options, loads: Ints, resident: Bools) -> Ints:
        return baselines.klotski(options)


class EnhancedKtransformers(TriSchedule):
    needs_units = False
    devices = baselines.GPU_CPU

    def __init__(
        self, contention: str = OWN_SHARE, shared: bool = True, pipelined: bool = True
    ) -> None:
        super().__init__(contention, shared, pipelined)

    def choose(self, options: Options, loads: Ints, resident: Bools) -> Ints:
        return baselines.enhanced_ktransformers(options, loads, resident)


class Monde(TriSchedule):
    devices = baselines.GPU_NDP

    def __init__(
        self, contention: str = OWN_SHARE, shared: bool = True, pipelined: bool = True
    ) -> None:
        super().__init__(contention, shared, pipelined)

    def choose(self, options: Options, loads: Ints, resident: Bools) -> Ints:
        return baselines.monde(options, loads, resident)
