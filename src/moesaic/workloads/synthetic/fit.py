"""From a real trace to the calibration whose synthetic routing has its statistics.

Every trial generates a short trace and describes it, always from the same random numbers: the
search sees smooth changes and gives the same answer every time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from moesaic.core.errors import ImpossibleSetting
from moesaic.workloads.block import PHASES
from moesaic.workloads.source import TraceSource
from moesaic.workloads.stats.sample import Sample, collect
from moesaic.workloads.stats.summary import Statistics, describe_sample
from moesaic.workloads.synthetic.calibration import Calibration, Logits
from moesaic.workloads.synthetic.generate import TraceShape, synthesize
from moesaic.workloads.synthetic.match import (
    fit_statistics,
    sharpness,
    trial_lengths,
    trial_sample,
    weights_sum_to_one,
)
from moesaic.workloads.synthetic.search import TRIALS, Numbers, Trial, search, to_logits

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
