"""What storing a model's experts, its other weights or its KV cache in fewer bits costs: measured
on a text and on questions.

One precision is in memory at a time: the reference's logits wait on disk, and every other is
compared with them while it reads the same text. Then all of them answer the same questions.
"""

from __future__ import annotations

import gc
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from moesaic.core.errors import BrokenModel, ImpossibleSetting
from moesaic.core.units import GB
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.gated_reading import read
from moesaic.engine.loading import LoadedModel, load_prepared
from moesaic.engine.preparation import PathLike, Prepared, prepare
from moesaic.engine.runner import Runner
from moesaic.kernels.dtypes import torch_dtype
from moesaic.lab.evaluation.answers import answers
from moesaic.lab.evaluation.items import Question
from moesaic.lab.evaluation.results import ItemResult
from moesaic.model_info.kv_dtypes import stored_as

# What a cheaper way of computing the same model costs: the next-token distributions of two runs
# over the same text, compared. Knows logits only, not their origin. KL(reference || other) is in
# nats per token. All sums are in fp64, so that differences far below bf16's own are real; a long
# text comes in chunks, of which only one number per token is kept.

_ROWS = 64  # tokens compared at a time: fp64 copies of a whole chunk could be gigabytes


@dataclass(frozen=True, slots=True)
class Quality:
    tokens: int
    mean_kl: float
    p99_kl: float  # the smallest that 99 % of the tokens do not exceed
    same_top1: float  # share of the tokens for which both like the same next token best
    reference_perplexity: float
    other_perplexity: float


def compare(reference: torch.Tensor, other: torch.Tensor, targets: torch.Tensor) -> Quality:
    """Logits [n, vocabulary] of both, and the token that really came next, [n]."""
    comparison = LogitsComparison()
    comparison.add(reference, other, targets)
    return comparison.result()


class LogitsComparison:
    """The same, chunk by chunk."""

    def __init__(self) -> None:
        self._divergences: list[torch.Tensor] = []
        self._same_top1 = 0
        self._reference_loss = 0.0
        self._other_loss = 0.0

    def add(self, reference: torch.Tensor, other: torch.Tensor, targets: torch.Tensor) -> None:
        assert reference.shape == other.shape, f"{reference.shape} is not {other.shape}"
        assert targets.shape == reference.shape[:1], f"{len(reference)} tokens, {targets.shape}"
        chunks = zip(*(each.split(_ROWS) for each in (reference, other, targets)), strict=True)
        for reference_rows, other_rows, target_rows in chunks:
            self._add_rows(reference_rows, other_rows, target_rows)

    def result(self) -> Quality:
        divergences = torch.cat(self._divergences or [torch.empty(0)])
        tokens = len(divergences)
        if not tokens:
            raise ImpossibleSetting(
                "no tokens to compare: quality is measured on predicted tokens, and a text needs "
                "at least two for one of them to be predicted; give a longer one"
            )
        return Quality(
            tokens=tokens,
            mean_kl=divergences.mean().item(),
            p99_kl=divergences.kthvalue(math.ceil(tokens * 99 / 100)).values.item(),
            same_top1=self._same_top1 / tokens,
            reference_perplexity=_perplexity(self._reference_loss, tokens),
            other_perplexity=_perplexity(self._other_loss, tokens),
        )

    def _add_rows(
        self, reference: torch.Tensor, other: torch.Tensor, targets: torch.Tensor
    ) -> None:
        self._same_top1 += int((reference.argmax(-1) == other.argmax(-1)).sum())
        ours, theirs = (logits.double().log_softmax(-1) for logits in (reference, other))
        self._divergences.append(_divergence(ours, theirs).cpu())
        chosen = targets[:, None]
        self._reference_loss -= ours.gather(1, chosen).sum().item()
        self._other_loss -= theirs.gather(1, chosen).sum().item()


def _divergence(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """KL per row of log-probabilities. A token that is impossible to `ours` adds nothing, one
    that is impossible to `theirs` alone makes it infinite."""
    terms = torch.where(ours == -math.inf, 0.0, ours.exp() * (ours - theirs))
    return terms.sum(-1).clamp_(min=0.0)  # never negative but for rounding


def _perplexity(loss: float, tokens: int) -> float:
    try:
        return math.exp(loss / tokens)
    except OverflowError:
        return math.inf


# Shows progress: what is done, how many pieces of it; gives what is called for every piece.
Bar = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, slots=True)
class ExpertQuality:
    expert_dtype: str
    dense_dtype: str  # of all other matrices
    kv_dtype: str  # of the KV cache
    expert_bytes: int
    load_s: float  # reading all weights, converting them, and getting to know the machine
    quality: Quality  # compared with the first
    answers: tuple[ItemResult, ...] = ()  # to the questions, in the order in which they came


def prepare_precisions(
    model: PathLike,
    settings: EngineSettings,
    expert_dtypes: Sequence[str],
    dense_dtypes: Sequence[str] = (),
    kv_dtypes: Sequence[str] = (),
) -> list[Prepared]:
    """The reference, which has the settings' own precision, and others, in which the experts, the
    other weights or the KV cache differ; what cannot be run is refused here."""
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
    others += [
        replace(settings, kv_dtype=dtype)
        for dtype in kv_dtypes
        if stored_as(dtype, own.plan.dtype) != _kv_dtype(own)
    ]
    if not others:
        raise ImpossibleSetting(
            f"there is nothing to compare {own.plan.expert_dtype} experts with: name other expert "
            "dtypes, such as int8 and int4"
        )
    return [own, *(prepare(model, each) for each in others)]


def _kv_dtype(prepared: Prepared) -> str:
    return stored_as(prepared.settings.kv_dtype, prepared.plan.dtype)


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
    kv_dtype = _kv_dtype(prepared)
    return ExpertQuality(expert_dtype, dense_dtype, kv_dtype, size, load_s, quality, tuple(given))


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


# A model's logits over a text, chunk by chunk, and a file on disk to keep them in. Memory stays
# small however long the text and wide the vocabulary: logits come in chunks, and those that are
# kept are in a temporary file without a name.

_PIECE_BYTES = 1 << 26
_SLOT = 0  # of the KV cache


class LogitsChunk(NamedTuple):
    start: int  # of the tokens with predictions, which are all but the last
    logits: torch.Tensor  # [tokens, vocabulary]: what should come after each
    targets: torch.Tensor  # [tokens]: what came


def text_logits(
    runner: Runner, tokens: Sequence[int], window: int, max_step_tokens: int
) -> Iterator[LogitsChunk]:
    """The KV cache is cleared every `window` tokens; a step has at most `max_step_tokens`.
    Nothing else may be generated meanwhile."""
    spec = runner.decoder.architecture.spec
    row_bytes = spec.vocab_size * runner.decoder.dtype.itemsize
    step = max(1, min(max_step_tokens, _PIECE_BYTES // row_bytes))
    try:
        for begin in range(0, len(tokens) - 1, window):
            runner.free_slot(_SLOT)
            end = min(begin + window, len(tokens) - 1)
            for start in range(begin, end, step):
                yield _piece(runner, tokens, start, min(start + step, end))
    finally:
        runner.free_slot(_SLOT)


def _piece(runner: Runner, tokens: Sequence[int], start: int, end: int) -> LogitsChunk:
    logits = read(runner, _SLOT, tokens[start:end])
    if not logits.isfinite().all():
        raise BrokenModel(rows=[0], batch=1)
    return LogitsChunk(start, logits, torch.tensor(tokens[start + 1 : end + 1]))


def logits_on_disk(tokens: int, vocabulary: int, dtype: torch.dtype) -> torch.Tensor:
    """Room for so many logits in a file without a name, [tokens, vocabulary]."""
    row_bytes = vocabulary * dtype.itemsize
    with tempfile.TemporaryFile() as file:
        try:
            # Without this a full disk would be found out by a signal that ends the process.
            os.posix_fallocate(file.fileno(), 0, tokens * row_bytes)
        except OSError as error:
            raise ImpossibleSetting(
                f"logits of {tokens} tokens take {tokens * row_bytes / GB:.2f} GB on disk, which "
                f"{tempfile.gettempdir()} does not have ({error.strerror}): use fewer tokens, or "
                "set TMPDIR to a place with more"
            ) from None
        memory = np.memmap(file, np.uint8, "r+", shape=(tokens, row_bytes))
    return torch.from_numpy(memory).view(dtype)
