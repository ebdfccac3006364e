"""The exact makespan over three devices by a mixed-integer program. A bound, not for speed."""

from __future__ import annotations

from moesaic.policies.schedule.tri import OWN_SHARE, TriSchedule
from moesaic.policies.tri.exact import SECONDS, optimal
from moesaic.policies.tri.layer import Bools, Ints, Options


class TriOptimal(TriSchedule):
    def __init__(
        self,
        seconds: float = SECONDS,
        contention: str = OWN_SHARE,
        shared: bool = True,
        pipelined: bool = True,
    ) -> None:
        super().__init__(contention, shared, pipelined)
        self._seconds = seconds

    def choose(self, options: Options, loads: Ints, resident: Bools) -> Ints:
        return optimal(options, seconds=self._seconds)[0]
