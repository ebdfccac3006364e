"""How much a text surprises a model, window by window. Needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch
from torch.nn import functional

from moesaic.core.errors import BrokenModel
from moesaic.engine.loading import LoadedModel
from moesaic.engine.runner import Feed, Runner
from moesaic.lab.evaluation.items import Window
from moesaic.lab.evaluation.results import Result

_PIECE_BYTES = 1 << 26  # of logits at a time
_SLOT = 0  # of the KV cache


def read_window(model: LoadedModel, window: Window) -> Result:
    """Nothing else may be generated meanwhile."""
    started = perf_counter()
    try:
        loss = _loss(model, window)
    finally:
        model.runner.forget(_SLOT)
    return Result(
        task=window.task,
        item=window.item,
        tokens=len(window.targets),
        seconds=perf_counter() - started,
        loss=loss,
        bytes=window.bytes,
        words=window.words,
    )


def _loss(model: LoadedModel, window: Window) -> float:
    runner, most = model.runner, model.settings.max_step_tokens
    row_bytes = model.spec.vocab_size * runner.decoder.dtype.itemsize
    step = max(1, min(most, _PIECE_BYTES // row_bytes))
    before = len(window.reads) - len(window.targets)  # only read
    for start in range(0, before, most):
        runner.step([Feed(_SLOT, window.reads[start : min(start + most, before)])])
    total = 0.0
    for start in range(0, len(window.targets), step):
        part = slice(before + start, before + start + step)
        total += _surprise(runner, window.reads[part], window.targets[start : start + step])
    return total


def _surprise(runner: Runner, reads: Sequence[int], targets: Sequence[int]) -> float:
    logits = runner.step([Feed(_SLOT, reads, all_logits=True)])
    if not logits.isfinite().all():
        raise BrokenModel(rows=[0], batch=1)
    losses = functional.cross_entropy(logits.float(), torch.tensor(targets), reduction="none")
    return float(losses.double().sum())
