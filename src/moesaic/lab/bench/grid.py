"""The bench: tests under several sets of policies, all on one loaded model, in real time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from moesaic.engine.assemble import on_store
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.runner import Runner
from moesaic.hardware.process_memory import process_memory
from moesaic.lab.bench.bench_configs import starting_counts
from moesaic.lab.bench.bench_model import Loaded
from moesaic.lab.bench.bench_row import BenchConfig, BenchRow
from moesaic.lab.bench.bench_steps import Repetition, Run, measure_case, repetitions, run_steps
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.drafted_decode import run_drafted
from moesaic.lab.bench.gated_decode import run_gated
from moesaic.lab.bench.replayed_routing import BenchRouting
from moesaic.lab.bench.step_recorder import StepRecorder
from moesaic.lab.fallback_script import script


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
    """Every configuration in every test, `count` times; each row when it is there. `advance(1)` is
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
