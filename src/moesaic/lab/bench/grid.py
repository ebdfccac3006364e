"""The bench: tests under several sets of policies, all on one loaded model, in real time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from moesaic.engine.assemble import on_store
from moesaic.engine.runner import Runner
from moesaic.hardware.process import process_memory
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.last_steps import Film
from moesaic.lab.bench.loaded import Loaded
from moesaic.lab.bench.replayed_routing import Routing
from moesaic.lab.bench.row import Contender, Row
from moesaic.lab.bench.steps import Repetition, repetitions, take


def run_bench(
    loaded: Loaded,
    contenders: Sequence[Contender],
    cases: Sequence[Case],
    routing: Routing,
    count: int,
    advance: Callable[[int], None] = lambda steps: None,
    film: Film | None = None,
) -> Iterator[Row]:
    """Every contender in every test, `count` times; each row when it is there. `advance(1)` is
    called after every step that counts; `film` records the last decode test."""
    counts = routing.counts()
    for contender in contenders:
        filmed = film if contender is contenders[-1] else None
        timeline = None if filmed is None else filmed.timeline
        settings, room = contender.settings, contender.plan.room
        runner = on_store(loaded.decoder, loaded.store, settings, room, counts, timeline)
        try:
            for case in cases:
                work = _work(runner, case, routing, settings.max_step_tokens)
                taken = take(runner, work, count, advance)
                if filmed is not None and case == _last_decode(cases):
                    filmed.record(runner, next(work))
                peak = process_memory().peak
                yield Row(contender, case, taken, loaded.seconds, peak)
        finally:
            runner.close()


def _work(runner: Runner, case: Case, routing: Routing, piece: int) -> Iterator[Repetition]:
    vocabulary = runner.decoder.architecture.spec.vocab_size
    return repetitions(case, routing.of(case), piece, vocabulary)


def _last_decode(cases: Sequence[Case]) -> Case | None:
    return next((case for case in reversed(cases) if case.phase == "decode"), None)
