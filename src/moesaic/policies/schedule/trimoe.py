"""TriMoE: greedy by own cost, then refined at the bottleneck until no reassignment helps."""

from __future__ import annotations

from moesaic.policies.schedule.tri import OWN_SHARE, TriSchedule
from moesaic.policies.tri.layer import Bools, Ints, Options
from moesaic.policies.tri.refine import EVERY, REFINE, trimoe, trimoe_from_the_end


class TriMoe(TriSchedule):
    def __init__(
        self,
        refine: int = REFINE,
        candidates: int = EVERY,
        least_first: bool = False,
        contention: str = OWN_SHARE,
        shared: bool = True,
        pipelined: bool = False,
    ) -> None:
        super().__init__(contention, shared, pipelined)
        self._refine, self._candidates = refine, candidates
        self._schedule = trimoe_from_the_end if least_first else trimoe  # highest load first

    def choose(self, options: Options, loads: Ints, resident: Bools) -> Ints:
        return self._schedule(options, self._refine, self._candidates)
