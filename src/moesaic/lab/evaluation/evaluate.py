"""Every item of an evaluation to its result, in order; what was done before is not done again. A
text is scored by its negative log-likelihood, window by window. Needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from time import perf_counter

import torch
from torch.nn import functional

from moesaic.core.errors import BrokenModel
from moesaic.engine.gated_reading import read
from moesaic.engine.loading import LoadedModel
from moesaic.engine.runner import Runner
from moesaic.lab.evaluation.answers import answers
from moesaic.lab.evaluation.items import Item, Question, TextWindow, Unusable
from moesaic.lab.evaluation.results import ItemResult
from moesaic.machines.real.forward_pass import ForwardPass, Piece

_PIECE_BYTES = 1 << 26  # of logits at a time
_SLOT = 0  # of the KV cache


def evaluate(
    model: LoadedModel, items: Sequence[Item], done: Mapping[tuple[str, str], ItemResult]
) -> Iterator[ItemResult]:
    """Results of what is not in `done`."""
    left = [item for item in items if (item.task, item.item) not in done]
    for _, several in groupby(left, key=lambda item: item.task):
        yield from _of_one_task(model, list(several))


def _of_one_task(model: LoadedModel, items: Sequence[Item]) -> Iterator[ItemResult]:
    for item in items:
        if isinstance(item, Unusable):
            yield ItemResult(item.task, item.item, item.group, why=item.why)
        elif isinstance(item, TextWindow):
            yield score_window(model, item)
    yield from answers(model, (item for item in items if isinstance(item, Question)))


def score_window(model: LoadedModel, window: TextWindow) -> ItemResult:
    """Nothing else may be generated meanwhile."""
    started = perf_counter()
    model.batcher.forget()
    try:
        loss = _loss(model, window)
    finally:
        model.runner.free_slot(_SLOT)
    return ItemResult(
        task=window.task,
        item=window.item,
        tokens=len(window.targets),
        seconds=perf_counter() - started,
        loss=loss,
        bytes=window.bytes,
        words=window.words,
    )


def _loss(model: LoadedModel, window: TextWindow) -> float:
    runner, max_step_tokens = model.runner, model.settings.step_tokens
    row_bytes = model.spec.vocab_size * runner.decoder.dtype.itemsize
    step = max(1, min(max_step_tokens, _PIECE_BYTES // row_bytes))
    before = len(window.reads) - len(window.targets)  # only read
    for start in range(0, before, max_step_tokens):
        runner.step(
            ForwardPass([Piece(_SLOT, window.reads[start : min(start + max_step_tokens, before)])])
        )
    total = 0.0
    for start in range(0, len(window.targets), step):
        part = slice(before + start, before + start + step)
        total += _negative_log_likelihood(
            runner, window.reads[part], window.targets[start : start + step]
        )
    return total


def _negative_log_likelihood(runner: Runner, reads: Sequence[int], targets: Sequence[int]) -> float:
    logits = read(runner, _SLOT, reads)
    if not logits.isfinite().all():
        raise BrokenModel(rows=[0], batch=1)
    losses = functional.cross_entropy(logits.float(), torch.tensor(targets), reduction="none")
    return float(losses.double().sum())
