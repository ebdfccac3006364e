"""The bench: tests under several sets of policies, all on one loaded model, in real time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from moesaic.core.routing import LayerRouting
from moesaic.engine.assemble import on_store
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.gating import confidence_of
from moesaic.engine.runner import Runner
from moesaic.hardware.procfs import process_memory
from moesaic.lab.bench.bench_configs import starting_counts
from moesaic.lab.bench.bench_model import Loaded
from moesaic.lab.bench.bench_row import BenchConfig, BenchRow
from moesaic.lab.bench.bench_steps import (
    CaseRuns,
    Repetition,
    Run,
    measure_case,
    note_step,
    repetitions,
    run_steps,
)
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.replayed_routing import BenchRouting
from moesaic.lab.bench.step_recorder import StepRecorder
from moesaic.lab.fallback_script import Script, script
from moesaic.machines.real.forward_pass import ForwardPass, Piece, Replay


def run_bench(
    loaded: Loaded,
    configs: Sequence[BenchConfig],
    cases: Sequence[Case],
    routing: BenchRouting,
    count: int,
    advance: Callable[[int], None] = lambda steps: None,
    recorders: Sequence[StepRecorder] = (),
    fallback_ratio: float | None = None,
    layerwise: bool = False,
) -> Iterator[BenchRow]:
    """Every configuration in every test, `count` times; each when complete. `advance(1)` is
    called after every step that counts; `recorders`, none or one for each configuration, record
    its last decode test. A gate runs a share of `fallback_ratio` again, None: those that it
    rejects. `layerwise`: steps are driven from Python, also where they could be captured."""
    counts = routing.counts()
    assert not recorders or len(recorders) == len(configs), "none, or one for each"
    recordings: Sequence[StepRecorder | None] = recorders or [None] * len(configs)
    for config, recording in zip(configs, recordings, strict=True):
        timeline = None if recording is None else recording.timeline
        settings, capacity = config.settings, config.plan.capacity
        starts = starting_counts(config.spec, settings, counts)
        runner = on_store(loaded.decoder, loaded.store, settings, capacity, starts, timeline)
        if layerwise:
            runner.machine.use_only_layerwise("asked for")
        try:
            for case in cases:
                work = repetitions_of(runner, case, routing, settings)
                run = run_of(runner, case, fallback_ratio)
                runs = measure_case(runner, work, count, advance, run)
                if recording is not None and case == _last_decode(cases):
                    recording.record(runner, next(work), run)
                peak = process_memory().peak
                yield BenchRow(config, case, runs, loaded.seconds, peak)
        finally:
            runner.close()


def repetitions_of(
    runner: Runner, case: Case, routing: BenchRouting, settings: EngineSettings
) -> Iterator[Repetition]:
    vocabulary = runner.decoder.architecture.spec.vocab_size
    piece, in_turns = settings.step_tokens, settings.batch_invariant
    return repetitions(case, routing.of(case), piece, vocabulary, in_turns)


def run_of(runner: Runner, case: Case, fallback_ratio: float | None) -> Run:
    """Tokens are decoded by a loop of its own where the gate may reject them."""
    if case.phase == "prefill" or not (runner.gate.reruns or runner.gate.draft):
        return run_steps
    scripted = None if fallback_ratio is None else script(fallback_ratio)
    decode = run_drafted if runner.gate.draft else run_gated
    return lambda runner, steps, runs, advance: decode(runner, steps, runs, scripted, advance)


def _last_decode(cases: Sequence[Case]) -> Case | None:
    return next((case for case in reversed(cases) if case.phase == "decode"), None)


# Decode steps of a bench under a gate that drafts. Nothing is sampled in a bench: the tokens of a
# test stand for drafts and for what stands alike. A draft counts as right by a script, or where
# the little and the full model like the same next token best. Every sequence goes on at its own
# pace; the last tokens of a test may have fewer drafts.


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


# Decode steps of a bench under a gate that runs tokens again. Every sequence goes through its
# tokens at its own pace, as in the engine's batcher: a rejected token runs again in the next
# pass, and the others go on. A sequence that has written all of its tokens leaves.


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
