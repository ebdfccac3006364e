"""Traces as steps: the routing of every step of a decode or prefill run.

Knows nothing of machines or policies. Only the documents that are being played are in memory.
A queue hands documents out one after another, and cursors take their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.step import Step
from moesaic.workloads.block import RoutingBlock, join
from moesaic.workloads.documents import documents, documents_of, part_of_phase
from moesaic.workloads.source import MadeAsRead, TraceSource
from moesaic.workloads.step_routing import StepRouting

__all__ = ["StepRouting", "decode_steps", "popularity", "prefill_steps"]


def decode_steps(
    source: TraceSource,
    batch: int,
    steps: int | None = None,
    *,
    skip_tokens: int = 0,
    wrap: bool = False,
) -> Iterator[StepRouting]:
    """Steps of `batch` documents in parallel, one token each; a finished document is replaced by
    the next one. All look back equally far, on the mean of their positions. Stops when the trace
    cannot fill the batch any more, or, where `steps` were asked for, raises `ImpossibleSetting`;
    with `wrap` the trace begins again instead."""
    _check_positive(batch=batch, steps=1 if steps is None else steps)
    if steps is None or wrap:
        queue = DocumentQueue(source, skip_tokens, wrap)
    else:
        queue = DocumentQueue.of_batch(source, batch, steps, skip_tokens)
    playing = [Cursor(queue) for _ in range(batch)]
    done = 0
    while steps is None or done < steps:
        rows = [cursor.take() for cursor in playing]
        if any(row is None for row in rows):
            if steps is None:
                return
            raise _too_short(
                source, f"{steps} decode steps of batch {batch}", f"{done} steps", skip_tokens
            )
        block = join([row for row in rows if row is not None])
        context = round(float(block.positions.mean()))
        yield StepRouting.of(block, source.header, Step.decode(batch, context), batch)
        done += 1


def prefill_steps(
    source: TraceSource,
    tokens: int,
    prompts: int | None = None,
    *,
    skip_tokens: int = 0,
    wrap: bool = False,
) -> Iterator[StepRouting]:
    """One step per prompt of `tokens` consecutive tokens. A prompt that is longer than what is
    left of a document continues in the next one: `StepRouting.documents` says in how many it
    lies. Ends like `decode_steps`."""
    _check_positive(tokens=tokens, prompts=1 if prompts is None else prompts)
    queue = DocumentQueue(source, skip_tokens, wrap)
    rest: list[RoutingBlock] = []
    done = 0
    while prompts is None or done < prompts:
        while sum(map(len, rest)) < tokens:
            following = queue.next("prefill")
            if following is None:
                break
            rest.append(following)
        if sum(map(len, rest)) < tokens:
            if prompts is None:
                return
            raise _too_short(
                source, f"{prompts} prompts of {tokens} tokens", f"{done} prompts", skip_tokens
            )
        joined, parts = join(rest), _parts_needed(rest, tokens)
        step = Step.prompt(tokens)
        yield StepRouting.of(joined.rows(slice(0, tokens)), source.header, step, parts)
        rest = [joined.rows(slice(tokens, None))] if len(joined) > tokens else []
        done += 1


def popularity(source: TraceSource, max_tokens: int | None = None) -> NDArray[np.int64]:
    """How often each expert of each layer was chosen in the first `max_tokens` tokens, [L, E]."""
    header = source.header
    offsets = np.arange(header.num_layers, dtype=np.int64)[:, None] * header.num_experts
    counts = np.zeros(header.num_layers * header.num_experts, dtype=np.int64)
    left = max_tokens
    for block in source.blocks():
        some = block.rows(slice(0, left))
        numbers = some.experts[:, :, : header.top_k] + offsets
        if some.counts is None:
            used = numbers.ravel()
        else:  # by a mask that is the same for all layers of a token
            ranks = np.arange(header.top_k) < some.counts[:, None, None]
            used = numbers[np.broadcast_to(ranks, numbers.shape)]
        counts += np.bincount(used, minlength=len(counts))
        if left is not None:
            left -= len(some)
            if left <= 0:
                break
    return counts.reshape(header.num_layers, header.num_experts)


def _parts_needed(parts: list[RoutingBlock], tokens: int) -> int:
    sizes = np.cumsum([len(p) for p in parts])
    return int(np.searchsorted(sizes, tokens)) + 1


def _check_positive(**settings: int) -> None:
    for name, value in settings.items():
        if value < 1:
            raise ImpossibleSetting(f"{name} must be at least 1, is {value}")


def _too_short(source: TraceSource, asked: str, possible: str, skipped: int) -> ImpossibleSetting:
    sizes = [len(d) for d in documents(source, skipped)]
    after = f" after the first {skipped}" if skipped else ""
    return ImpossibleSetting(
        f"{asked} were asked for; the trace of {source.header.model} has {sum(sizes)} tokens in "
        f"{len(sizes)} documents{after}, enough for {possible}. "
        "Ask for less, let the trace wrap around, or use a longer trace."
    )


class DocumentQueue:
    """The documents of a trace in order, over and over where wrapping is allowed."""

    def __init__(self, source: TraceSource, skip_tokens: int, wrap: bool) -> None:
        self._source, self._skip, self._wrap = source, skip_tokens, wrap
        self._documents = documents(source, skip_tokens)
        self._round = 0

    @classmethod
    def of_batch(cls, source: TraceSource, batch: int, steps: int, skip_tokens: int) -> Self:
        """Read for so many decode steps and no more; what they do not read may be missing."""
        queue = cls(source, skip_tokens, wrap=False)
        if isinstance(source, MadeAsRead):
            queue._documents = documents_of(source.blocks_of_batch(batch, steps, skip_tokens))
        return queue

    def next(self, phase: str) -> RoutingBlock | None:
        """The next document's tokens of this phase (all of them where it has none)."""
        following = next(self._documents, None)
        if following is None and self._wrap:
            self._round += 1
            self._documents = documents(self._source, self._skip)
            following = next(self._documents, None)
        if following is None:
            return None
        return _rotated(part_of_phase(following, phase), self._round)


def _rotated(document: RoutingBlock, turn: int) -> RoutingBlock:
    """In later rounds a document begins at another token, so that two copies of it in one batch
    do not route in lockstep."""
    start = int(turn * 0.618 * len(document)) % len(document)
    if start == 0:
        return document
    return join([document.rows(slice(start, None)), document.rows(slice(0, start))])


class Cursor:
    """One place of the batch."""

    def __init__(self, queue: DocumentQueue) -> None:
        self._queue = queue
        self._document: RoutingBlock | None = None
        self._next = 0

    def take(self) -> RoutingBlock | None:
        if self._document is None or self._next == len(self._document):
            self._document, self._next = self._queue.next("decode"), 0
        if self._document is None:
            return None
        self._next += 1
        return self._document.rows(slice(self._next - 1, self._next))
