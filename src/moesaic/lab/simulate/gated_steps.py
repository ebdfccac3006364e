"""A trace's steps as a gate lets them run: tokens use fewer experts where it says so, and rejected
ones run again.

As in the engine (engine/batcher.py), a rejected token runs again in the next pass, together with
the next tokens of the other sequences: each sequence goes through its tokens at its own pace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.confidence import Confidence
from moesaic.core.routing import LayerRouting
from moesaic.core.step import Step
from moesaic.lab.fallback_script import Script, script
from moesaic.policies.gate.base import Gate, GateStep
from moesaic.workloads.step_routing import StepRouting, join_rows

# A trace's steps under a gate that drafts: little passes, then one pass that checks them. As in
# the engine (engine/drafting.py), sequences go on at their own pace, so that a pass may mix
# drafts of some with checks of others. A trace has the routing of the text that stood: a draft
# that is rejected is taken to be routed as the token that stands in its place.


class Check(NamedTuple):
    drafted: int
    stood: int  # the check's own token included


class DraftedPass(NamedTuple):
    """What `gated_steps.Pass` is made of."""

    routed: StepRouting
    number: int
    stands: int
    again: int  # tokens that are run again, and the last draft, in checks
    rows: tuple[int, ...]
    ages: tuple[int, ...]
    checks: tuple[Check, ...]


@dataclass(slots=True)
class _Sequence:
    at: int = 0  # the token that stands and is to be computed next
    drafted: int = 0
    first_pass: int = 0  # of the round
    rows: tuple[int, ...] = ()  # of its drafts, one per pass


def drafted_steps(
    steps: Iterator[StepRouting], gate: Gate, scripted: Script | None, seed: int = 0
) -> Iterator[DraftedPass]:
    """`scripted(sequence, token)`: the draft of the token after this one is wrong; without it, the
    trace's top probability is the chance that it is right."""
    held: dict[int, StepRouting] = {}
    states: list[_Sequence] = []
    known, passes = 0, 0
    while True:
        ahead = max((each.at for each in states), default=0) + gate.draft
        while known <= ahead:  # a check computes as many tokens beyond the one that stands
            step = next(steps, None)
            if step is None:
                return
            held[known] = step.whole()
            known += 1
        states = states or [_Sequence() for _ in range(held[0].tokens)]
        yield _one_pass(held, states, gate, scripted, passes, seed)
        passes += 1
        for passed in [token for token in held if token < min(each.at for each in states)]:
            del held[passed]


def _one_pass(
    held: dict[int, StepRouting],
    states: list[_Sequence],
    gate: Gate,
    scripted: Script | None,
    number: int,
    seed: int,
) -> DraftedPass:
    rows: list[tuple[StepRouting, int]] = []
    sources: list[int] = []
    ages: list[int] = []
    shape: list[tuple[int, int]] = []
    asked: list[int] = []
    checks: list[Check] = []
    reached = max(each.at for each in states)
    for sequence, state in enumerate(states):
        checking = state.drafted == gate.draft
        tokens = gate.draft + 1 if checking else 1
        first = state.at + (0 if checking else state.drafted)
        context = held[first].step.sequences[sequence].context
        shape.append((tokens, context))
        asked.append(int(checking))
        if checking:
            sources += [*state.rows, -1]
            ages += [*(number - state.first_pass - i for i in range(gate.draft)), 1]
            checks.append(_check(held, sequence, state, gate, scripted, seed))
        else:
            state.first_pass = state.first_pass if state.drafted else number
            state.rows = (*(state.rows if state.drafted else ()), len(sources))
            sources.append(-1)
            ages.append(1)
            state.drafted += 1
        rows += [(held[token], sequence) for token in range(first, first + tokens)]
    routed = replace(join_rows(rows), step=Step.of(shape))
    step = GateStep(tuple(n for n, _ in shape), (False,) * len(shape), tuple(asked))
    counts = gate.experts_per_token(step)
    again = sum(n for (n, _), check in zip(shape, asked, strict=True) if check)
    stands = sum(check.stood for check in checks)
    done = iter(checks)
    for state, check in zip(states, asked, strict=True):
        if check:
            state.at, state.drafted, state.rows = state.at + next(done).stood, 0, ()
    return DraftedPass(
        routed if counts is None else routed.cut(np.asarray(counts)), reached, stands, again,
        tuple(sources), tuple(ages), tuple(checks),
    )  # fmt: skip


def _check(
    held: dict[int, StepRouting],
    sequence: int,
    state: _Sequence,
    gate: Gate,
    scripted: Script | None,
    seed: int,
) -> Check:
    right = 0
    while right < gate.draft and not _wrong(held, sequence, state.at + right, scripted, seed):
        right += 1
    return Check(gate.draft, right + 1)


def _wrong(
    held: dict[int, StepRouting], sequence: int, token: int, scripted: Script | None, seed: int
) -> bool:
    if scripted is not None:
        return scripted(sequence, token)
    confidence = held[token].confidence
    assert confidence is not None, "checked before the run"
    top = float(confidence.top[sequence])
    return script(1.0 - top, seed)(sequence, token) if np.isfinite(top) else False


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
    """Which tokens that used fewer than top-k are rejected; those of unknown confidence stand."""
    if counts is None:
        return np.zeros(len(at), dtype=np.bool_)
    if scripted is not None:
        found = np.array([scripted(sequence, token) for sequence, token in enumerate(at)])
    else:
        assert confidence is not None, "checked before the run"
        found = gate.judge(asked, confidence) & np.isfinite(confidence.top)
    return found & (counts < gate.top_k)
