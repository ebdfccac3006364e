"""Prices, rounding and local search over three devices: close to the exact makespan, fast."""

from __future__ import annotations

from moesaic.policies.schedule.tri import OWN_SHARE, TriSchedule
from moesaic.policies.tri.fast import KICKS, ROUNDS, balanced
from moesaic.policies.tri.layer import Bools, Ints, Options


class TriBalanced(TriSchedule):
    def __init__(
        self,
        rounds: int = ROUNDS,
        kicks: int = KICKS,
        contention: str = OWN_SHARE,
        shared: bool = True,
        pipelined: bool = True,
    ) -> None:
        super().__init__(contention, shared, pipelined)
        self._rounds, self._kicks = rounds, kicks

    def choose(self, options: Options, loads: Ints, resident: Bools) -> Ints:
        return balanced(options, self._rounds, self._kicks)[0]
