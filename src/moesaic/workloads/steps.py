"""Traces as steps: the routing of every step of a decode or prefill run.

Knows nothing of machines or policies. Only the documents that are being played are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.step import Step
from moesaic.workloads.block import RoutingBlock, join
from moesaic.workloads.document_queue import Cursor, DocumentQueue, PromptReader
from moesaic.workloads.documents import documents
from moesaic.workloads.source import TraceSource
from moesaic.workloads.step_routing import StepRouting

__all__ = ["StepRouting", "decode_steps", "mixed_steps", "popularity", "prefill_steps"]


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


def mixed_steps(
    source: TraceSource,
    prompt_tokens: int,
    decoding: int,
    steps: int | None = None,
    *,
    skip_tokens: int = 0,
    wrap: bool = False,
) -> Iterator[StepRouting]:
    """Steps in which pieces of prompts, `prompt_tokens` in all, are mixed with `decoding`
    sequences that bring one token each. Prompts are read one after another: a piece that ends one
    goes on with the next, which is a sequence of its own. Every sequence has the context that its
    document gives it, and no document is decoded and read as a prompt at once. Ends like
    `decode_steps`."""
    _check_positive(
        prompt_tokens=prompt_tokens, decoding=decoding, steps=1 if steps is None else steps
    )
    queue = DocumentQueue(source, skip_tokens, wrap)
    playing = [Cursor(queue) for _ in range(decoding)]
    prompts = PromptReader(queue)
    done = 0
    while steps is None or done < steps:
        rows, pieces = [cursor.take() for cursor in playing], prompts.take(prompt_tokens)
        parts = [*rows, *pieces]
        if any(part is None for part in parts) or sum(map(len, pieces)) < prompt_tokens:
            if steps is None:
                return
            asked = (
                f"{steps} steps of {prompt_tokens} prompt tokens with {decoding} decoding sequences"
            )
            raise _too_short(source, asked, f"{done} steps", skip_tokens)
        blocks = [part for part in parts if part is not None]
        step = Step.of((len(block), int(block.positions[0])) for block in blocks)
        yield StepRouting.of(join(blocks), source.header, step, len(blocks))
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
