"""Which slots of the KV cache are in use, and what the others still hold.

A slot whose request has ended keeps its tokens until another request needs it, so what is kept
takes no memory beyond the KV cache of the memory plan. A prompt that begins like the tokens of a
slot need not be read that far: it goes on in that slot, or its entries are copied from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from moesaic.engine.kv.prefix_tree import Tokens, shared
from moesaic.engine.request import Request
from moesaic.engine.runner import Runner

# Shorter prefixes are read again: a request that waits for another's would lose a whole step.
LEAST_SHARED = 16  # tokens

_NONE: Tokens = np.zeros(0, dtype=np.int64)


class Prefix(NamedTuple):
    """The first `length` tokens of a slot."""

    slot: int
    length: int


class KVSlots:
    """`reuse`: whether anything is kept at all."""

    def __init__(self, runner: Runner, slots: int, reuse: bool) -> None:
        self._runner, self.reuse = runner, reuse
        self.count = slots
        self._kept: dict[int, Tokens] = {}
        self._free: list[int] = []  # least recently used first
        self.clear()

    @property
    def any_free(self) -> bool:
        return bool(self._free)

    @property
    def kept_tokens(self) -> int:
        """The tokens of ended requests that are kept."""
        return sum(len(self._held(slot)) for slot in self._free)

    def clear(self) -> None:
        """Every slot is free, and nothing is kept."""
        self._kept.clear()
        self._free = list(range(self.count))
        for slot in self._free:
            self._runner.free_slot(slot)

    def acquire(self, prompt: Sequence[int]) -> Prefix:
        """A free slot with the entries of this many tokens of the prompt. A slot is
        continued where most of what it holds is of use; else the least recently used one is
        emptied."""
        if not self.reuse:
            return Prefix(self._free.pop(0), 0)
        wanted = np.array(prompt[:-1], dtype=np.int64)  # the last one's logits are wanted
        best = self._longest(wanted, self._free)
        slot = min(self._free, key=lambda free: len(self._held(free)) > 0)  # an empty one, if any
        if best.length and 2 * best.length >= len(self._held(best.slot)):
            slot = best.slot
        length = best.length if slot == best.slot else 0
        self._free.remove(slot)
        self._kept.pop(slot, None)
        self._runner.cache.truncate(slot, length)
        return Prefix(slot, length)

    def release(self, request: Request) -> None:
        """The request has ended, at whatever point: its computed tokens are kept, unless it failed,
        since what was computed may be what is wrong."""
        slot = request.slot
        assert slot is not None, "a running request has a slot"
        kept = self.reuse and request.failure is None
        tokens = self._computed(request) if kept else _NONE
        if not len(tokens) or not self._usable(slot, len(tokens)):
            self._runner.free_slot(slot)
        else:
            self._runner.cache.truncate(slot, len(tokens))
            self._kept[slot] = tokens
        self._free.append(slot)

    def reclaim(self) -> None:
        """No request runs: a slot that an interruption left to none is free too."""
        for slot in sorted(set(range(self.count)) - set(self._free)):
            self._runner.free_slot(slot)
            self._free.append(slot)

    def begin(self, request: Request, earlier: Iterable[Request]) -> bool:
        """A request that has a slot gets the longest prefix of its prompt that any slot holds.
        False: one of the `earlier` requests is about to compute a longer one, worth waiting for."""
        if not self.reuse:
            return True
        assert request.slot is not None, "a running request has a slot"
        wanted = _prompt(request)[:-1]
        own = Prefix(request.slot, request.computed_tokens)
        best, coming = _longer(own, self._longest(wanted, self._free)), 0
        for other in earlier:
            assert other.slot is not None, "a running request has a slot"
            best = _longer(best, self._prefix(other.slot, wanted, self._computed(other)))
            whole = shared(wanted, _prompt(other))
            if whole >= LEAST_SHARED and other.computed_tokens < whole:
                coming = max(coming, whole)
        if coming > best.length:
            return False
        if best.slot != request.slot:
            self._runner.copy_prefix(best.slot, request.slot, best.length)
            request.computed_tokens = best.length
        return True

    def _longest(self, wanted: Tokens, slots: Iterable[int]) -> Prefix:
        best = Prefix(-1, 0)
        for slot in slots:
            best = _longer(best, self._prefix(slot, wanted, self._held(slot)))
        return best

    def _prefix(self, slot: int, wanted: Tokens, held: Tokens) -> Prefix:
        """The common beginning of both; none where it is of no use."""
        return Prefix(slot, self._usable(slot, shared(wanted, held)))

    def _usable(self, slot: int, length: int) -> int:
        """This many tokens of a slot, or 0 where they are too few, or where the next one could not
        see what has left a sliding window."""
        least = max(LEAST_SHARED, self._runner.cache.least_length(slot))
        return length if length >= least else 0

    def _held(self, slot: int) -> Tokens:
        """Others may have used the runner and emptied the slot."""
        return self._kept.get(slot, _NONE)[: self._runner.cache.length(slot)]

    def _computed(self, request: Request) -> Tokens:
        """The tokens whose entries are those that reading them as a prompt would leave. An
        interrupted step may have left more or fewer entries than the request counts."""
        assert request.slot is not None, "a running request has a slot"
        length = min(request.computed_tokens, self._runner.cache.length(request.slot))
        if not self._runner.writes_as_it_reads:
            length = min(length, len(request.prompt))
        return np.array(request.sampling.seen[:length], dtype=np.int64)


def _prompt(request: Request) -> Tokens:
    """The prompt from its array of tokens: a tuple takes forty times as long, and requests that
    wait ask in every step."""
    return np.array(request.sampling.seen[: len(request.prompt)], dtype=np.int64)


def _longer(one: Prefix, other: Prefix) -> Prefix:
    """The first of equals."""
    return other if other.length > one.length else one
