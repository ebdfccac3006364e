"""What storing a model's experts in fewer bits costs, measured on a text.

One precision is in memory at a time: the reference's logits wait on disk, and every other is
compared with them while it reads the same text.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter

import torch

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.generation.loading import load_prepared
from moesaic.engine.generation.preparation import PathLike, Prepared, prepare
from moesaic.engine.quality.compared_logits import Quality, QualityTally
from moesaic.engine.quality.text_logits import logits_on_disk, text_logits
from moesaic.kernels.dtypes import torch_dtype

# Shows progress: what is done, how many pieces of it; gives what is called for every piece.
Bar = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, slots=True)
class ExpertQuality:
    expert_dtype: str
    expert_bytes: int
    load_s: float  # reading all weights, converting them, and getting to know the machine
    quality: Quality  # compared with the first


def prepare_precisions(
    model: PathLike, settings: EngineSettings, expert_dtypes: Sequence[str]
) -> list[Prepared]:
    """The reference, which has the settings' own precision, and others; what cannot be run is
    refused here."""
    own = prepare(model, settings)
    others = [dtype for dtype in expert_dtypes if dtype != own.plan.expert_dtype]
    if not others:
        raise ImpossibleSetting(
            f"there is nothing to compare {own.plan.expert_dtype} experts with: name other expert "
            "dtypes, such as int8 and int4"
        )
    return [own, *(prepare(model, replace(settings, expert_dtype=dtype)) for dtype in others)]


def compare_precisions(
    precisions: Sequence[Prepared], tokens: Sequence[int], bar: Bar | None = None
) -> Iterator[ExpertQuality]:
    """One after another; the first is what all are compared with."""
    first = precisions[0]
    dtype = torch_dtype(first.plan.dtype)
    reference = logits_on_disk(len(tokens) - 1, first.spec.vocab_size, dtype)
    for prepared in precisions:
        yield _measure(prepared, tokens, reference, prepared is first, bar or _no_bar)
        gc.collect()  # before the next one is loaded


def _measure(
    prepared: Prepared, tokens: Sequence[int], reference: torch.Tensor, is_first: bool, bar: Bar
) -> ExpertQuality:
    expert_dtype = prepared.plan.expert_dtype
    started = perf_counter()
    with bar(f"loading {expert_dtype} experts", prepared.spec.num_expert_blocks) as advance:
        model = load_prepared(prepared, None, lambda done, of: advance(1))
    load_s = perf_counter() - started
    tally = QualityTally()
    window, most = prepared.plan.room.length, prepared.settings.max_step_tokens
    try:
        with bar(f"reading with {expert_dtype} experts", len(tokens) - 1) as advance:
            for start, logits, targets in text_logits(model.runner, tokens, window, most):
                kept = reference[start : start + len(logits)]
                if is_first:
                    kept.copy_(logits)
                tally.add(kept, logits, targets)
                advance(len(logits))
    finally:
        model.close()
    return ExpertQuality(expert_dtype, model.runner.machine.store.bytes, load_s, tally.result())


def _no_bar(words: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda pieces: None)
