"""From a real trace to the calibration whose synthetic routing has its statistics.

Every trial generates a short trace and describes it, always from the same random numbers: the
search sees smooth changes and gives the same answer every time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting
from moesaic.workloads.block import PHASES
from moesaic.workloads.source import TraceSource
from moesaic.workloads.stats.cache import lru_curve
from moesaic.workloads.stats.load import active_fraction, loads, max_over_mean, top_shares
from moesaic.workloads.stats.locality import (
    independent_overlap,
    overlap,
    predictability,
    reuse_by_rank,
)
from moesaic.workloads.stats.sample import Sample, collect
from moesaic.workloads.stats.summary import Statistics, describe_sample
from moesaic.workloads.synthetic.calibration import Calibration, Logits
from moesaic.workloads.synthetic.generate import TraceShape, best_experts, synthesize
from moesaic.workloads.synthetic.latent import LatentModel

# The search behind a fit: which eight numbers bring the statistics closest. Knows no traces.

Numbers = NDArray[np.float64]

# The free numbers as the search sees them, and where it starts: logarithms of the shares
# relative to the token's and of the memory, log-odds of the correlations,
# and the inverse hyperbolic tangent of the skew.
START = {
    "popularity": float(np.log(0.3)),
    "document": float(np.log(0.3)),
    "slow": float(np.log(0.2)),
    "noise": float(np.log(0.08)),
    "memory_tokens": float(np.log(8.0)),
    "echo": float(np.log(0.3 / 0.7)),
    "depth": float(np.log(0.985 / 0.015)),
    "skew": 0.0,
}
ROUNDS = 5
TRIALS = 1 + ROUNDS * (len(START) + 2)
STEP = 0.25  # of a number, to see which way the statistics go
LIMIT = 1.0  # the most a number moves in one round
LOWEST, HIGHEST = -6.0, 6.0  # keeps shares and correlations away from 0 and 1


class Trial(NamedTuple):
    numbers: Numbers
    difference: NDArray[np.float64]  # found minus wanted, per statistic

    @property
    def cost(self) -> float:
        return float((self.difference**2).sum())


def search(tried: Callable[[Numbers], Trial]) -> Trial:
    """Gauss-Newton with damping: see how each number moves the statistics, solve for the best
    move, take it or half of it, whichever is better, if either is."""
    best = tried(np.array(list(START.values())))
    for _ in range(ROUNDS):
        slope = _slope(best, tried)
        damped = slope.T @ slope + 1e-3 * np.eye(len(START))
        move = np.linalg.solve(damped, -slope.T @ best.difference).clip(-LIMIT, LIMIT)
        moved = [tried(_bounded(best.numbers + part * move)) for part in (1.0, 0.5)]
        best = min([best, *moved], key=lambda trial: trial.cost)
    return best


def to_logits(numbers: Numbers) -> Logits:
    """The search's numbers as shares of a variance of 1."""
    named = dict(zip(START, numbers.tolist(), strict=True))
    shares = {k: float(np.exp(named[k])) for k in ("popularity", "document", "slow", "noise")}
    total = 1.0 + sum(shares.values())
    return Logits(
        popularity=shares["popularity"] / total,
        document=shares["document"] / total,
        slow=shares["slow"] / total,
        token=1.0 / total,
        noise=shares["noise"] / total,
        memory_tokens=float(np.exp(named["memory_tokens"])),
        echo=_share_of_odds(named["echo"]),
        depth=_share_of_odds(named["depth"]),
        skew=float(np.tanh(named["skew"])),
    )


def _slope(at: Trial, tried: Callable[[Numbers], Trial]) -> NDArray[np.float64]:
    """[statistics, numbers]"""
    columns = []
    for index in range(len(START)):
        numbers = at.numbers.copy()
        numbers[index] += STEP
        columns.append((tried(numbers).difference - at.difference) / STEP)
    return np.stack(columns, axis=1)


def _bounded(numbers: Numbers) -> Numbers:
    return numbers.clip(LOWEST, HIGHEST)


def _share_of_odds(log_odds: float) -> float:
    return float(1.0 / (1.0 + np.exp(-log_odds)))


PARTS = TRIALS + 2  # for a progress bar
MIN_TOKENS = 1_000
TWIN_TOKENS = 20_000  # of the synthetic trace that is compared with the real one


def fit(
    source: TraceSource,
    name: str | None = None,
    *,
    seed: int = 0,
    provenance: dict[str, Any] | None = None,
    advance: Callable[[], object] = lambda: None,
) -> Calibration:
    """The calibration of a real trace; calls `advance` `PARTS` times."""
    real = _enough(source)
    wanted, lengths = fit_statistics(real), trial_lengths(real)

    def tried(numbers: Numbers) -> Trial:
        found = fit_statistics(trial_sample(to_logits(numbers), real, lengths, seed))
        advance()
        return Trial(numbers, np.array([found[name] - wanted[name] for name in wanted]))

    logits = to_logits(search(tried).numbers)
    logits = _rounded_logits(replace(logits, sharpness=sharpness(logits, real, seed)))
    calibration = _calibration(name or source.header.model, logits, source, real, seed)
    advance()
    twin = describe_sample(_twin(calibration, source, real, seed))
    advance()
    return replace(
        calibration,
        synthetic_statistics=_rounded(twin),
        provenance={**calibration.provenance, **(provenance or {})},
    )


def _enough(source: TraceSource) -> Sample:
    real = collect(source)
    tokens, layers = len(real.ranked), real.num_layers
    if tokens < MIN_TOKENS or layers < 2 or len(real.lengths) < 2:
        raise ImpossibleSetting(
            f"fitting needs at least {MIN_TOKENS} tokens, 2 layers and 2 documents; the trace of "
            f"{source.header.model} has {tokens}, {layers} and {len(real.lengths)}"
        )
    return real


def _calibration(
    name: str, logits: Logits, source: TraceSource, real: Sample, seed: int
) -> Calibration:
    header = source.header
    quantiles = np.quantile(real.lengths, np.linspace(0, 1, 11)).astype(int)
    return Calibration(
        name=name,
        logits=logits,
        document_tokens=tuple(int(q) for q in quantiles),
        phase=PHASES[int(next(source.blocks()).phases[0])],
        source=header.source,
        provenance={
            "tokens": len(real.ranked),
            "documents": len(real.lengths),
            "layers": header.num_layers,
            "experts": header.num_experts,
            "top_k": header.top_k,
            "seed": seed,
        },
        statistics=_rounded(describe_sample(real)),
    )


def _twin(calibration: Calibration, source: TraceSource, real: Sample, seed: int) -> Sample:
    """A synthetic trace of the real one's shape, from other random numbers than the search's."""
    h = source.header
    shape = TraceShape(h.model, h.num_layers, h.num_experts, h.top_k, weights_sum_to_one(real))
    tokens = min(TWIN_TOKENS, len(real.ranked))
    twin = synthesize(calibration, shape, tokens, seed=seed + 1, ranks=h.ranks)
    return collect(twin)


def _rounded(statistics: Statistics) -> Statistics:
    return {name: round(value, 4) for name, value in statistics.items()}


def _rounded_logits(logits: Logits) -> Logits:
    """Four digits: more would be noise of the search."""
    numbers: dict[str, Any] = {
        k: float(f"{v:.4g}") for k, v in asdict(logits).items() if isinstance(v, float)
    }
    return replace(logits, **numbers)


# What a fit compares: a few statistics of every kind, of the real trace and of a trial.

TRIAL_LAYERS = 8  # synthetic layers are all alike, so a few stand for the rest
TRIAL_TOKENS = 16_000


def fit_statistics(sample: Sample) -> Statistics:
    """What the search matches, each counting the same."""
    shares, caches = (0.1, 0.25, 0.5, 0.75), (0.25, 0.5, 0.75)
    lags, batches = (1, 2, 4, 8, 32), (8, 32, 128)
    distances = tuple(d for d in (1, 2, 3) if d < sample.num_layers)
    recalls, popular = predictability(sample, distances)
    reuse = reuse_by_rank(sample)[: sample.top_k]
    counts = loads(sample)
    return {
        "busiest": max_over_mean(counts) / 10,  # the one ratio, brought to the size of the rest
        "drift": independent_overlap(sample),
        "popular": popular,
        **_named("predict", distances, recalls),
        **_named("reuse", range(sample.top_k), reuse),
        **_named("share", shares, top_shares(counts, shares)),
        **_named("overlap", lags, [_overlap(sample, lag) for lag in lags]),
        **_named("lru_cold", caches, lru_curve(sample, caches, cold=True)),
        **_named("lru_warm", caches, lru_curve(sample, caches, cold=False)),
        **_named("active", batches, [active_fraction(sample, b) for b in batches]),
    }


def _overlap(sample: Sample, lag: int) -> float:
    """Zero where no document is long enough: real trace and trial are then alike in it."""
    return overlap(sample, lag) or 0.0


def trial_lengths(real: Sample) -> NDArray[np.int64]:
    """Lengths of evenly picked documents, about `TRIAL_TOKENS` in all."""
    lengths = real.lengths
    count = min(len(lengths), max(10, round(TRIAL_TOKENS / float(lengths.mean()))))
    return lengths[np.linspace(0, len(lengths) - 1, count).astype(np.int64)]


def trial_sample(logits: Logits, real: Sample, lengths: NDArray[np.int64], seed: int) -> Sample:
    """Synthetic routing as wide as the real trace, of a few layers and documents."""
    layers = min(TRIAL_LAYERS, real.num_layers)
    model = LatentModel(logits, layers, real.num_experts, seed)
    chosen = [
        best_experts(piece.logits, real.top_k).swapaxes(0, 1).astype(np.uint16)
        for document, length in enumerate(lengths)
        for piece in model.document(document, int(length))
    ]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Sample(np.concatenate(chosen), real.top_k, real.num_experts, starts, None)


def sharpness(logits: Logits, real: Sample, seed: int) -> float:
    """The sharpness that gives the best expert its real mean weight, by bisection: it changes
    the weights only, not the choice."""
    if real.weights is None:
        return logits.sharpness
    wanted, normalized = float(real.weights[..., 0].mean()), weights_sum_to_one(real)
    model = LatentModel(logits, min(TRIAL_LAYERS, real.num_layers), real.num_experts, seed)
    pieces = [next(model.document(d, 64)).logits for d in range(32)]
    ordered = -np.sort(-np.concatenate(pieces, axis=1), axis=-1)
    below_best = (ordered - ordered[..., :1])[..., : real.top_k if normalized else None]
    low, high = 0.0, 20.0
    for _ in range(24):
        middle = (low + high) / 2
        best = float((1.0 / np.exp(middle * below_best).sum(axis=-1)).mean())
        low, high = (middle, high) if best < wanted else (low, middle)
    return (low + high) / 2


def weights_sum_to_one(sample: Sample) -> bool:
    """Are the gate weights scaled over the chosen experts? (Stored weights are rounded.)"""
    return sample.weights is not None and abs(float(sample.weights.sum(-1).mean()) - 1) < 0.02


def _named(prefix: str, labels: Iterable[object], values: Iterable[float]) -> Statistics:
    return {f"{prefix}_{label}": v for label, v in zip(labels, values, strict=True)}
