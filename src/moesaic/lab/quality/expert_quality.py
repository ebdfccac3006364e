"""What storing a model's experts, or its other weights, in fewer bits costs: measured on a text
and on questions.

One precision is in memory at a time: the reference's logits wait on disk, and every other is
compared with them while it reads the same text. Then all of them answer the same questions.
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
from moesaic.engine.loading import LoadedModel, load_prepared
from moesaic.engine.preparation import PathLike, Prepared, prepare
from moesaic.kernels.dtypes import torch_dtype
from moesaic.lab.evaluation.answers import answers
from moesaic.lab.evaluation.items import Question
from moesaic.lab.evaluation.results import ItemResult
from moesaic.lab.quality.compared_logits import LogitsComparison, Quality
from moesaic.lab.quality.text_logits import logits_on_disk, text_logits

# Shows progress: what is done, how many pieces of it; gives what is called for every piece.
Bar = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, slots=True)
class ExpertQuality:
    expert_dtype: str
    dense_dtype: str  # of all other matrices
    expert_bytes: int
    load_s: float  # reading all weights, converting them, and getting to know the machine
    quality: Quality  # compared with the first
    answers: tuple[ItemResult, ...] = ()  # to the questions, in the order in which they came


def prepare_precisions(
    model: PathLike,
    settings: EngineSettings,
    expert_dtypes: Sequence[str],
    dense_dtypes: Sequence[str] = (),
) -> list[Prepared]:
    """The reference, which has the settings' own precision, and others, in which either the
    experts or the other weights differ; what cannot be run is refused here."""
    own = prepare(model, settings)
    settings = replace(settings, accelerator=own.settings.accelerator)  # one device for all
    others = [
        replace(settings, expert_dtype=dtype)
        for dtype in expert_dtypes
        if dtype != own.plan.expert_dtype
    ]
    others += [
        replace(settings, dense_dtype=dtype)
        for dtype in dense_dtypes
        if dtype != own.plan.dense_dtype
    ]
    if not others:
        raise ImpossibleSetting(
            f"there is nothing to compare {own.plan.expert_dtype} experts with: name other expert "
            "dtypes, such as int8 and int4"
        )
    return [own, *(prepare(model, each) for each in others)]


def compare_precisions(
    precisions: Sequence[Prepared],
    tokens: Sequence[int],
    bar: Bar | None = None,
    window: int | None = None,
    questions: Sequence[Question] = (),
) -> Iterator[ExpertQuality]:
    """One after another; the first is what all are compared with. `window` is how much of the text
    is seen at once, where that is less than a sequence may have."""
    first = precisions[0]
    dtype = torch_dtype(first.plan.dtype)
    reference = logits_on_disk(len(tokens) - 1, first.spec.vocab_size, dtype)
    text = _Text(tokens, window or first.plan.capacity.length, reference)
    for prepared in precisions:
        yield _measure(prepared, text, questions, prepared is first, bar or _no_bar)
        gc.collect()  # before the next one is loaded


@dataclass(frozen=True, slots=True)
class _Text:
    tokens: Sequence[int]
    window: int
    reference: torch.Tensor  # logits of the first, once it has read


def _measure(
    prepared: Prepared, text: _Text, questions: Sequence[Question], is_first: bool, bar: Bar
) -> ExpertQuality:
    expert_dtype, dense_dtype = prepared.plan.expert_dtype, prepared.plan.dense_dtype
    started = perf_counter()
    with bar(f"loading {expert_dtype} experts", prepared.spec.num_expert_blocks) as advance:
        model = load_prepared(prepared, None, lambda done, of: advance(1))
    load_s = perf_counter() - started
    try:
        with bar(f"reading with {expert_dtype} experts", len(text.tokens) - 1) as advance:
            quality = _read(model, text, is_first, advance)
        given: list[ItemResult] = []
        with bar(f"answering with {expert_dtype} experts", len(questions)) as advance:
            for result in answers(model, questions):
                given.append(result)
                advance(1)
    finally:
        model.close()
    size = model.runner.machine.store.bytes
    return ExpertQuality(expert_dtype, dense_dtype, size, load_s, quality, tuple(given))


def _read(
    model: LoadedModel, text: _Text, is_first: bool, advance: Callable[[int], None]
) -> Quality:
    comparison, max_step_tokens = LogitsComparison(), model.settings.step_tokens
    for start, logits, targets in text_logits(
        model.runner, text.tokens, text.window, max_step_tokens
    ):
        kept = text.reference[start : start + len(logits)]
        if is_first:
            kept.copy_(logits)
        comparison.add(kept, logits, targets)
        advance(len(logits))
    return comparison.result()


def _no_bar(words: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda pieces: None)
