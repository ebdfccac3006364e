"""A trace's steps as a gate lets them run: tokens use fewer experts where it says so, and rejected
ones run again.

As in the engine (engine/batcher.py), a rejected token runs again in the next pass, together with
the next tokens of the other sequences: each sequence goes through its tokens at its own pace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.confidence import Confidence
from moesaic.core.routing import LayerRouting
from moesaic.core.step import Step
from moesaic.lab.fallback_script import Script
from moesaic.lab.simulate.drafted_steps import Check, drafted_steps
from moesaic.policies.gate.base import Gate, GateStep
from moesaic.workloads.step_routing import StepRouting, join_rows


class Pass(NamedTuple):
    """One forward pass of a simulated run; a machine can be given it as it is."""

    routed: StepRouting
    number: int  # how far the sequence is that is ahead, in its tokens
    stands: int  # how many tokens are not run again after it
    again: int = 0  # how many are run again in it
    rows: tuple[int, ...] | None = None  # the token's row in the pass before, -1: a first attempt
    ages: tuple[int, ...] | None = None  # how many passes ago that was; None: in the last
    checks: tuple[Check, ...] = ()  # of drafts, in this pass

    @property
    def step(self) -> Step:
        return self.routed.step

    def layer(self, layer: int) -> LayerRouting:
        return self.routed.layer(layer)


def gated(
    steps: Iterable[StepRouting],
    gate: Gate,
    scripted: Script | None = None,
    phase: str = "decode",
    seed: int = 0,
) -> Iterator[Pass]:
    """`scripted` says which tokens are rejected; without it, the gate judges the trace's
    confidence. Ends with the first sequence that has no token left."""
    if gate.draft and phase == "decode":
        for drafted in drafted_steps(iter(steps), gate, scripted, seed):
            yield Pass(*drafted)
        return
    if gate.reruns:
        yield from _own_paces(iter(steps), gate, scripted)
        return
    for number, step in enumerate(steps):
        prompt = step.phase == "prefill"
        asked = GateStep.of_prompt(step.tokens) if prompt else GateStep.decode(step.tokens)
        counts = gate.experts_per_token(asked)
        yield Pass(step if counts is None else step.cut(counts), number, step.tokens)


def _own_paces(steps: Iterator[StepRouting], gate: Gate, scripted: Script | None) -> Iterator[Pass]:
    held: dict[int, StepRouting] = {}  # steps that some sequence has not passed
    at: list[int] = []  # each sequence's token
    attempts: list[int] = []
    for number, step in enumerate(steps):
        if step.phase == "prefill":
            yield Pass(step, number, step.tokens)
            continue
        at, attempts = at or [0] * step.tokens, attempts or [0] * step.tokens
        held[number] = step.whole()
        while max(at) == number:
            joined = join_rows([(held[token], row) for row, token in enumerate(at)])
            asked = GateStep((1,) * len(at), (False,) * len(at), tuple(attempts))
            counts = gate.experts_per_token(asked)
            rejected = _rejected(gate, asked, counts, joined.confidence, at, scripted)
            rows = tuple(row if tried else -1 for row, tried in enumerate(attempts))
            routed = joined if counts is None else joined.cut(counts)
            again = sum(tried > 0 for tried in attempts)
            yield Pass(routed, number, len(at) - int(rejected.sum()), again, rows)
            attempts = [tried + 1 if r else 0 for tried, r in zip(attempts, rejected, strict=True)]
            at = [token + (not r) for token, r in zip(at, rejected, strict=True)]
        for passed in [token for token in held if token < min(at)]:
            del held[passed]


def _rejected(
    gate: Gate,
    asked: GateStep,
    counts: NDArray[np.int64] | None,
    confidence: Confidence | None,
    at: list[int],
    scripted: Script | None,
) -> NDArray[np.bool_]:
    """Of tokens that used fewer than top-k; what is not known stands."""
    if counts is None:
        return np.zeros(len(at), dtype=np.bool_)
    if scripted is not None:
        found = np.array([scripted(sequence, token) for sequence, token in enumerate(at)])
    else:
        assert confidence is not None, "checked before the run"
        found = gate.judge(asked, confidence) & np.isfinite(confidence.top)
    return found & (counts < gate.top_k)
