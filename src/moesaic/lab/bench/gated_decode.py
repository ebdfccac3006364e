"""Decode steps of a bench under a gate that runs tokens again.

Every sequence goes through its tokens at its own pace, as in the engine's batcher: a rejected token
runs again in the next pass, and the others go on. A sequence that has written all of its tokens
leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from moesaic.core.routing import LayerRouting
from moesaic.engine.gating import confidence_of
from moesaic.engine.runner import Runner
from moesaic.lab.bench.bench_steps import CaseRuns, note_step
from moesaic.lab.fallback_script import Script
from moesaic.machines.real.forward_pass import ForwardPass, Replay


def run_gated(
    runner: Runner,
    steps: Sequence[ForwardPass],
    runs: CaseRuns,
    scripted: Script | None,
    advance: Callable[[int], None] = lambda steps: None,
) -> None:
    """`scripted` says which tokens are rejected; without it, the gate judges the logits."""
    at = [0] * len(steps[0].pieces) if steps else []
    attempts = [0] * len(at)
    while going := [number for number, token in enumerate(at) if token < len(steps)]:
        before = min(at)
        pieces = [
            steps[at[n]].pieces[n]._replace(attempt=attempts[n], sampling=None)  # it sees logits
            for n in going
        ]
        replay = joined_replay([(steps[at[n]].replay, n) for n in going])
        work = runner.placed(ForwardPass(pieces, replay=replay))
        logits = runner.step(work)
        note_step(runner, work, runs)
        if scripted is None:
            again = runner.roll_back(work, list(range(len(going))), confidence_of(logits))
        else:
            chosen = [row for row, n in enumerate(going) if scripted(n, at[n])]
            again = runner.take_back(work, chosen)
        for row, number in enumerate(going):
            attempts[number] = attempts[number] + 1 if row in again else 0
            at[number] += row not in again
        advance(min(at) - before)


def joined_replay(rows: list[tuple[Replay | None, int]]) -> Replay | None:
    """The replayed routing of tokens from several steps."""
    first = rows[0][0]
    if first is None:
        return None
    if len(rows) == 1 and first(0).num_tokens == 1:
        return first

    def layer(number: int) -> LayerRouting:
        parts = [(replay(number), row) for replay, row in rows if replay is not None]

        def column(name: str) -> Any:
            return np.stack([getattr(routing, name)[row] for routing, row in parts])

        some = parts[0][0]
        arrays = {name: column(name) for name in ("experts", "weights", "ranked", "scores")}
        return replace(some, **arrays, forecasts=())

    return layer
