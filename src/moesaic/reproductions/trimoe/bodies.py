"""The body that a run names, and what it makes of the run."""

from __future__ import annotations

from moesaic.reproductions.trimoe.replayed import replayed
from moesaic.reproductions.trimoe.runs import MAKESPAN, PLANS, Outcome, Run
from moesaic.reproductions.trimoe.simulated import planned, simulated

_BODIES = {MAKESPAN: replayed, PLANS: planned}


def execute(run: Run) -> Outcome:
    return _BODIES.get(run.body, simulated)(run)
