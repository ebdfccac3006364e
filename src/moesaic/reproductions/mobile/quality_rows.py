"""Rows of tables II, III and IV for the bundled model: accuracy and fallback ratio, ours, not the
paper's; and the three confidence measures at equal fallback ratios, which no paper compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

from moesaic.core.worker_pool import worker_pool
from moesaic.lab.gating.rules import TOP_PROBABILITY, Rule, full_rule
from moesaic.lab.gating.tally import Outcome, Tally
from moesaic.policies.gate import MEASURES
from moesaic.policies.gate.reuse import REUSES, ROUTE_AGAIN
from moesaic.reproductions.mobile.paper import ACCURACY, GSM8K_FULL
from moesaic.reproductions.row import Row

PREFIX = "accuracy"
RATIOS = (0.02, 0.04, 0.08)  # fallback ratios at which measures are compared
MODEL = "moesaic-20m"
Curve = Sequence[tuple[float, float]]  # fallback ratio, accuracy


def ids() -> list[str]:
    """The ids of all rows, before anything is measured."""
    found = [f"{name}/{what}" for name, _, _ in _settings() for what in ("accuracy", "kept")]
    found += [f"{name}/fallback" for name, _, rule in _settings() if not rule.full]
    return [*found, *(f"{PREFIX}/confidence/{m}/ratio={r:g}" for m in MEASURES for r in RATIOS)]


def quality_rows(found: Mapping[Rule, Tally], problems: int) -> list[Row]:
    full = found[full_rule(TOP_K)]
    conditions = _conditions(full.asked, problems)
    rows: list[Row] = []
    for name, claim, rule in _settings():
        rows += _rows_of(name, claim, rule, found[rule], full, conditions)
    command = f"moesaic reproduce mobile --only {PREFIX}/confidence"
    for measure in MEASURES:
        line = curve(found, measure)
        for ratio in RATIOS:
            rows.append(
                Row(
                    f"{PREFIX}/confidence/{measure}/ratio={ratio:g}",
                    f"{measure}: accuracy if {ratio:.0%} of tokens fall back",
                    None, at_ratio(line, ratio), "share right",
                    f"{conditions}; between the thresholds measured, linear", command,
                )
            )  # fmt: skip
    return rows


def curve(found: Mapping[Rule, Tally], measure: str) -> Curve:
    """Accuracy over fallback ratio, k = K/2, from the little model to the highest threshold."""
    chosen = [found[Rule(HALF, 0.0)]]
    gammas = (*GAMMAS[1:], *PAST_THE_PAPER) if measure == TOP_PROBABILITY else OTHERS
    chosen += [found[Rule(HALF, gamma, measure)] for gamma in gammas]
    return sorted((tally.fallback_ratio, tally.accuracy) for tally in chosen)


def at_ratio(line: Curve, ratio: float) -> float:
    """Linear between neighbours; beyond the last, the last."""
    for (left, low), (right, high) in pairwise(line):
        if left <= ratio <= right:
            share = (ratio - left) / (right - left) if right > left else 0.0
            return low + share * (high - low)
    return line[-1][1]


def _settings() -> Iterator[tuple[str, str, Rule]]:
    yield f"{PREFIX}/table2/full", "all experts", full_rule(TOP_K)
    yield f"{PREFIX}/table2/little", "half of the experts", Rule(HALF, 0.0)
    yield f"{PREFIX}/table2/mobile", "MoBiLE, threshold 0.7", Rule(HALF, 0.7)
    for gamma in (*GAMMAS, *PAST_THE_PAPER):
        yield f"{PREFIX}/table3/gamma={gamma:g}", f"threshold {gamma:g}", Rule(HALF, gamma)
    yield f"{PREFIX}/table3/gamma=1", "threshold 1: all experts", full_rule(TOP_K)
    for k in range(1, TOP_K):
        yield f"{PREFIX}/table4/k={k}/little", f"{k} of {TOP_K} experts", Rule(k, 0.0)
        yield f"{PREFIX}/table4/k={k}", f"{k} of {TOP_K} experts, threshold 0.7", Rule(k, 0.7)
    for way in bound_ways():
        for gamma in REUSED:
            name = f"{PREFIX}/reuse={way}/gamma={gamma:g}"
            claim = f"threshold {gamma:g}, big passes reuse the little one's {way}"
            yield name, claim, Rule(HALF, gamma, reuse=way)


def _rows_of(
    name: str, claim: str, rule: Rule, tally: Tally, full: Tally, conditions: str
) -> Iterator[Row]:
    low, high = tally.interval
    stated = ACCURACY.get(name.removeprefix(f"{PREFIX}/"))
    beside, kept, ratio = "", None, None
    if stated is not None:
        beside = f" (the paper's OLMoE on GSM8K: {stated.accuracy:g})"
        kept, ratio = stated.accuracy / GSM8K_FULL, stated.fallback_ratio
    command = f"moesaic eval --limit {full.asked // 2} --dtype fp32 --gate {rule.gate}"
    words = f"{conditions}; 95 % interval {low:.3f} to {high:.3f}"
    yield Row(
        f"{name}/accuracy", f"{claim}: accuracy of {MODEL}{beside}", None, tally.accuracy,
        "share right", words, command,
    )  # fmt: skip
    yield Row(
        f"{name}/kept", f"{claim}: accuracy over that of all experts", kept,
        tally.accuracy / full.accuracy, "x", f"{words}; the paper's ratio is of another model "
        "and task", command,
    )  # fmt: skip
    if not rule.full:  # which has no fallbacks, or all tokens, as one likes
        yield Row(
            f"{name}/fallback", f"{claim}: fallback ratio", ratio, tally.fallback_ratio, "share",
            f"{conditions}; {tally.decoded} tokens", command,
        )  # fmt: skip


def _conditions(asked: int, problems: int) -> str:
    return (
        f"{MODEL} on {asked} held-out problems ({problems} of each split), greedy, fp32: accuracy "
        "of this model and these problems, not of the paper's"
    )


# The bundled model's answers under every rule that a table asks for, in several processes.

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
