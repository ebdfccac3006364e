"""The steps of a bench and their measurement: chunked prefill, as the engine does it, and decode
from an empty context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import repeat

import numpy as np

from moesaic.core.routing import LayerRouting
from moesaic.core.step import Step
from moesaic.core.units import NS_PER_S
from moesaic.engine.gate_stats import GateCounter
from moesaic.engine.runner import Runner
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.replayed_routing import PROFILE_TOKENS, WARMUP_STEPS
from moesaic.lab.replayed_run import MeasuredRun
from moesaic.machines.real.forward_pass import GREEDY, ForwardPass, Piece
from moesaic.workloads.source import TraceSource
from moesaic.workloads.steps import decode_steps, prefill_steps

Advance = Callable[[int], None]


Repetition = list[ForwardPass]  # steps to do
Run = Callable[[Runner, Repetition, "CaseRuns", Advance], None]
Layers = list[LayerRouting]  # of one step


@dataclass(slots=True)
class CaseRuns:
    """The measured repetitions of one test."""

    measured: MeasuredRun = field(default_factory=MeasuredRun)
    steps: list[Step] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of each repetition
    gate: GateCounter = field(default_factory=GateCounter)
    prefetch_accuracy: float | None = None  # since the runner was made


def repetitions(
    case: Case,
    source: TraceSource | None,
    piece: int,
    vocabulary: int,
    in_turns: bool = False,
) -> Iterator[Repetition]:
    """One after another, without end; `in_turns`: every sequence of a batch in steps of its own."""
    random = np.random.default_rng(0)
    routed = _routed(case, source)
    while True:
        if case.phase == "decode":
            chosen = random.integers(vocabulary, size=(case.tokens, case.batch)).tolist()
            pieces = [[_greedy(slot, [token]) for slot, token in enumerate(row)] for row in chosen]
            steps = [(each, next(routed)) for each in pieces]
            if in_turns:
                steps = [part for each, layers in steps for part in _alone(each, layers)]
            yield [_work(each, layers) for each, layers in steps]
        else:
            prompt = random.integers(vocabulary, size=case.tokens).tolist()
            yield _pieces(prompt, piece, next(routed))


def measure_case(
    runner: Runner,
    work: Iterator[Repetition],
    count: int,
    advance: Advance = lambda steps: None,
    run: Run | None = None,
) -> CaseRuns:
    """So many repetitions, each from an empty context, after some steps that do not count; `run`
    does the steps of one."""
    run = run_steps if run is None else run  # which stands below
    runs = warmed_up(runner, work, run)
    for _ in range(count):
        measure_once(runner, next(work), runs, advance, run)
    return runs


def warmed_up(runner: Runner, work: Iterator[Repetition], run: Run) -> CaseRuns:
    """After some steps that do not count: a test without repetitions yet."""
    run(runner, next(work)[:WARMUP_STEPS], CaseRuns(), lambda steps: None)
    free_slots(runner)
    return CaseRuns(gate=GateCounter(runner.gate_name, runner.reads_of_a_token))


def measure_once(
    runner: Runner, repetition: Repetition, runs: CaseRuns, advance: Advance, run: Run
) -> None:
    """One more repetition."""
    done, before = len(runs.steps), runner.bytes_moved
    run(runner, repetition, runs, advance)
    free_slots(runner)
    reports = runs.measured.reports[done:]
    runs.seconds.append(sum(report.latency_ns for report in reports) / NS_PER_S)
    runs.measured.bytes_moved += runner.bytes_moved - before
    runs.prefetch_accuracy = runner.prefetch_accuracy


def run_steps(
    runner: Runner, steps: Repetition, runs: CaseRuns, advance: Advance = lambda steps: None
) -> None:
    for each in steps:
        work = runner.placed(each)
        runner.step(work)
        note_step(runner, work, runs)
        advance(1)


def note_step(runner: Runner, work: ForwardPass, runs: CaseRuns) -> None:
    """What the step just done has cost; `work` has the positions it had."""
    assert runner.report is not None, "a step was just done"
    runs.steps.append(work.step)
    runs.measured.reports.append(runner.report)
    runs.measured.times.append(runner.machine.times)
    active = sum(layer.active for layer in runner.report.layers)
    runs.gate.add_pass(work, runner.machine.times.step_ns, active)


def free_slots(runner: Runner) -> None:
    """Clear the KV cache."""
    for slot in range(runner.cache.slots):
        runner.free_slot(slot)


def _routed(case: Case, source: TraceSource | None) -> Iterator[Layers | None]:
    """Laid out beforehand: handing it over must not count as the engine's time."""
    if source is None:
        return repeat(None)
    if case.phase == "decode":
        steps = decode_steps(source, case.batch, skip_tokens=PROFILE_TOKENS, wrap=True)
    else:
        steps = prefill_steps(source, case.tokens, skip_tokens=PROFILE_TOKENS, wrap=True)
    return ([step.layer(at) for at in range(source.header.num_layers)] for step in steps)


def _pieces(prompt: list[int], piece: int, layers: Layers | None) -> Repetition:
    parts = [slice(start, start + piece) for start in range(0, len(prompt), piece)]
    return [
        _work([_greedy(0, prompt[rows])], None if layers is None else _rows_of(layers, rows))
        for rows in parts
    ]


def _greedy(slot: int, tokens: list[int]) -> Piece:
    """A piece as of a request without penalties: a machine that samples need not hand over
    logits."""
    return Piece(slot, tokens, sampling=GREEDY)


def _alone(pieces: list[Piece], layers: Layers | None) -> list[tuple[list[Piece], Layers | None]]:
    """One decode step of a batch as one of each sequence."""
    return [
        ([each], None if layers is None else _rows_of(layers, slice(row, row + 1)))
        for row, each in enumerate(pieces)
    ]


def _work(pieces: list[Piece], layers: Layers | None) -> ForwardPass:
    return ForwardPass(pieces, None if layers is None else layers.__getitem__)


def _rows_of(layers: Layers, rows: slice) -> Layers:
    """The routing of some tokens of a prompt."""
    return [
        replace(
            whole,
            experts=whole.experts[rows],
            weights=whole.weights[rows],
            ranked=whole.ranked[rows],
            scores=whole.scores[rows],
            forecasts=(),
            counts=None if whole.counts is None else whole.counts[rows],
        )
        for whole in layers
    ]
