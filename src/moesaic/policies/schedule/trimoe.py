"""TriMoE: greedy by own cost, then refined at the bottleneck until no reassignment helps."""

from __future__ import annotations

from moesaic.policies.schedule.tri import OWN_SHARE, TriSchedule
from moesaic.policies.tri.layer import Bools, Ints, Options
from moesaic.policies.tri.refine import EVERY, REFINE, trimoe


class TriMoe(TriSchedule):
    def __init__(
        self,
        refine: int = REFINE,
        candidates: int = EVERY,
        contention: str = OWN_SHARE,
        shared: bool = True,
        pipelined: bool = False,
    ) -> None:
        super().__init__(contention, shared, pipelined)
        self._refine, self._candidates = refine, candidates

    def choose(self, options: Options, loads: Ints, resident: Bools) -> Ints:
        return trimoe(options, self._refine, self._candidates)
