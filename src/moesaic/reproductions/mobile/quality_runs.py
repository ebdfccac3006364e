"""The bundled model's answers under every rule that a table asks for, in several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from moesaic.core.worker_pool import worker_pool
from moesaic.lab.gating.outcome import Outcome
from moesaic.lab.gating.rules import TOP_PROBABILITY, Rule, full_rule
from moesaic.policies.gate import MEASURES
from moesaic.policies.gate.reuse import REUSES, ROUTE_AGAIN

TOP_K = 4  # of the bundled model
HALF = TOP_K // 2
GAMMAS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9)  # and 1, the full model
PAST_THE_PAPER = (0.95, 0.99, 0.995)
OTHERS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)  # of the other measures
REUSED = (0.7, 0.9, 0.99, 1.0)  # of big models bound to what the little one chose
PROBLEMS, QUICK_PROBLEMS = 40, 8  # of each split
_LENGTH = 512  # tokens of a sequence: the longest problem and its answer
_AT_ONCE = 4  # problems


def rules() -> list[Rule]:
    found = [full_rule(TOP_K)]
    for k in range(1, TOP_K):
        found += [Rule(k, gamma) for gamma in GAMMAS]
    found += [Rule(HALF, gamma) for gamma in PAST_THE_PAPER]
    found += [Rule(HALF, gamma, reuse=way) for way in bound_ways() for gamma in REUSED]
    others = [measure for measure in MEASURES if measure != TOP_PROBABILITY]
    return [*found, *(Rule(HALF, gamma, measure) for measure in others for gamma in OTHERS)]


def bound_ways() -> list[str]:
    return [way for way in REUSES if way != ROUTE_AGAIN]


def answered(problems: int, jobs: int, advance: Callable[[int], None]) -> Iterator[Outcome]:
    """The outcomes of every rule on the first `problems` of each split; `advance(1)` after each
    part of the work. The engine computes in fp32, in one thread per process."""
    parts = max(jobs, 1)
    work = partial(_part, problems, parts)
    if parts == 1:
        yield from work(0)
        advance(1)
        return
    with worker_pool(parts) as pool:
        for outcomes in pool.map(work, range(parts)):
            yield from outcomes
            advance(1)


def _part(problems: int, parts: int, number: int) -> list[Outcome]:
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.engine.loading import load_prepared
    from moesaic.engine.preparation import prepare
    from moesaic.lab.evaluation.problem_task import problem_items
    from moesaic.lab.evaluation.prompts import CHAT
    from moesaic.lab.gating.forked import ForkedDecoding

    asked = rules()
    sequences = _AT_ONCE * len(asked)
    settings = EngineSettings(
        accelerator="none",
        dtype="fp32",
        max_sequences=sequences,
        max_model_len=_LENGTH,
        threads=1,
    )
    prepared = prepare(None, settings)
    assert prepared.tokenizer is not None, "the bundled model has one"
    questions = problem_items(prepared.tokenizer, CHAT, problems)[number::parts]
    model = load_prepared(prepared)
    try:
        return list(ForkedDecoding(model, asked).run(questions))
    finally:
        model.close()
