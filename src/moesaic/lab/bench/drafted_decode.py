"""Decode steps of a bench under a gate that drafts.

Nothing is sampled in a bench: the tokens of a test stand for drafts and for what stands alike. A
draft counts as right by a script, or where the little and the full model like the same next token
best. Every sequence goes on at its own pace; the last tokens of a test may have fewer drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from moesaic.engine.runner import Runner
from moesaic.lab.bench.bench_steps import CaseRuns, note_step
from moesaic.lab.bench.gated_decode import joined_replay
from moesaic.lab.fallback_script import Script
from moesaic.machines.real.forward_pass import ForwardPass, Piece


@dataclass(slots=True)
class _Sequence:
    number: int
    at: int = 0  # the token that is to be computed next and stands
    drafts: list[int] = field(default_factory=list)  # best next tokens of the little model


def run_drafted(
    runner: Runner,
    steps: Sequence[ForwardPass],
    runs: CaseRuns,
    scripted: Script | None,
    advance: Callable[[int], None] = lambda steps: None,
) -> None:
    """`scripted` says after which tokens the draft is wrong."""
    every = [_Sequence(number) for number in range(len(steps[0].pieces) if steps else 0)]
    while going := [each for each in every if each.at < len(steps)]:
        before = min(each.at for each in every)
        parts = [_part(runner, each, steps) for each in going]
        rows = [(steps[at].replay, each.number) for each, (_, ats) in zip(going, parts, strict=True)
                for at in ats]  # fmt: skip
        pieces = [given for given, _ in parts]
        work = runner.placed(ForwardPass(pieces, replay=joined_replay(rows)))
        logits = runner.step(work)
        note_step(runner, work, runs)
        _settle(runner, going, pieces, logits, runs, scripted)
        advance(min(each.at for each in every) - before)


def _part(runner: Runner, sequence: _Sequence, steps: Sequence[ForwardPass]) -> tuple[Piece, range]:
    """What the sequence brings, and the numbers of these tokens."""
    drafts = min(runner.gate.draft, len(steps) - sequence.at - 1)
    if len(sequence.drafts) < drafts:
        ats = range(sequence.at + len(sequence.drafts), sequence.at + len(sequence.drafts) + 1)
    else:
        ats = range(sequence.at, sequence.at + drafts + 1)
    checks = len(sequence.drafts) == drafts
    given = [steps[at].pieces[sequence.number] for at in ats]
    slot, tokens = given[0].slot, [each.tokens[0] for each in given]
    if checks:
        runner.cache.truncate(slot, sequence.at)
    return Piece(slot, tokens, checks, prompt=False, attempt=int(checks)), ats


def _settle(
    runner: Runner,
    going: Sequence[_Sequence],
    pieces: Sequence[Piece],
    logits: torch.Tensor,
    runs: CaseRuns,
    scripted: Script | None,
) -> None:
    first = 0
    for sequence, given in zip(going, pieces, strict=True):
        best = logits[first : first + len(given.tokens)].argmax(-1).tolist()
        first += len(best)
        if not given.attempt:
            sequence.drafts.append(best[0])
            continue
        right = 0
        while right < len(sequence.drafts) and not _wrong(sequence, right, best, scripted):
            right += 1
        runs.gate.add_check(len(sequence.drafts), right + 1)
        sequence.at, sequence.drafts = sequence.at + right + 1, []
        runner.cache.truncate(given.slot, sequence.at)


def _wrong(sequence: _Sequence, draft: int, best: list[int], scripted: Script | None) -> bool:
    if scripted is not None:
        return scripted(sequence.number, sequence.at + draft)
    return sequence.drafts[draft] != best[draft]
