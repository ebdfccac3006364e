"""The KV cache as requests see it: a slot while they run, blocks for their tokens, and the first
tokens of their prompts where these are kept.

What ended requests have computed is kept until blocks are needed. A request whose prompt begins
like one that is being read waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from moesaic.engine.kv.kv_blocks import LEAST_SHARED, Running
from moesaic.engine.kv.prefix_tree import NONE, Tokens, shared
from moesaic.engine.request import Request
from moesaic.engine.run_stats import BlockStats
from moesaic.engine.runner import Runner
from moesaic.model_info.kv_blocks import KV_BLOCK, blocks_of
from moesaic.model_info.sliding_window import REWIND

_NONE: Tokens = np.zeros(0, dtype=np.int64)
_APART = 2048  # tokens between two checkpoints, where nothing says where messages end
_LEAST_APART = 256  # where messages are short
_LEAST_APART_IN_STEPS = 1024  # where a prompt is cut for it: a step more reads all experts again


class RequestBlocks:
    """`reuse`: whether anything is kept at all; `preempts`: whether a request can be read again
    from its tokens. Else it gets blocks for all tokens that it may have."""

    def __init__(self, runner: Runner, slots: int, reuse: bool, preempts: bool) -> None:
        self._runner, self.reuse, self.preempts = runner, reuse, preempts
        self._kv = runner.kv
        self.count = slots
        self._free = list(range(slots))
        self.clear()

    @property
    def any_free(self) -> bool:
        return bool(self._free)

    @property
    def kept_tokens(self) -> int:
        """The tokens of ended requests that are kept."""
        nodes = self._kv.tree.nodes()
        return sum(len(node.tokens) for node in nodes if node.block != NONE and not node.users)

    def stats(self) -> BlockStats:
        pool, tree = self._kv.pool, self._kv.tree
        shared = {node.block for node in tree.nodes() if node.users > 1}
        return BlockStats(
            total=len(pool.holders), used=len(pool.holders) - pool.free, shared=len(shared),
            kept=tree.unused, checkpoints=len(self._kv.checkpoints),
            checkpoint_bytes=self._kv.checkpoints.nbytes, copies=tree.copied,
            most_copies=tree.most_copies, loaded_tokens=self._kv.loaded_tokens,
        )  # fmt: skip

    def clear(self) -> None:
        """Every slot is free, and nothing is kept."""
        self._free = list(range(self.count))
        for slot in self._free:
            self._runner.free_slot(slot)
        self._kv.clear()

    def waits_for(self, request: Request, running: Iterable[Request]) -> bool:
        """Whether its prompt begins like one that is being read, worth waiting for."""
        if not self.reuse:
            return False
        ahead = request.behind
        if ahead is not None and ahead.slot is not None:
            if ahead.computed_tokens < request.behind_until:
                return True
            request.behind = None
        reading = [other for other in running if other.prefilling]
        if not reading:
            return False
        wanted = _to_read(request)[:-1]
        found = self._kv.match(wanted, self._running(reading))
        for other in reading:
            whole = self._will_keep(other, shared(wanted, _to_read(other)))
            if whole >= max(LEAST_SHARED, found + 1) and other.computed_tokens < whole:
                request.behind, request.behind_until, found = other, whole, whole
        return request.behind is not None

    def admit(self, request: Request, running: Sequence[Request]) -> bool:
        """A slot, which is free, the tokens that are kept, and blocks for those that are to be
        read and one more. False, and nothing has changed, where blocks are short."""
        slot = self._free[0]
        tokens = _to_read(request)
        length = len(tokens) + 1
        if not self.preempts:
            length = len(request.prompt) + request.max_new_tokens
        wanted = tokens[:-1] if self.reuse else _NONE  # the last one's logits are wanted
        sources = self._running(running) if self.reuse else ()
        differs = self._kv.difference(wanted)
        found = self._kv.begin(slot, wanted, sources, length, self._spare(running))
        if found is None:
            return False
        self._free.remove(slot)
        request.slot, request.computed_tokens, request.differs = slot, found, differs
        return True

    def _spare(self, running: Iterable[Request]) -> int:
        """Blocks that running requests will need soon: one each, if they have not got all yet."""
        return sum(
            self._kv.count(_slot(each)) < blocks_of(len(each.prompt) + each.max_new_tokens)
            for each in running
        )

    def grow(self, request: Request, tokens: int) -> bool:
        """Blocks for so many more tokens than its slot has."""
        slot = _slot(request)
        return self._kv.grow(slot, self._runner.cache.length(slot) + tokens)

    def next_cut(self, request: Request) -> int:
        """Tokens of a prompt up to the next place where a checkpoint has to be made between two
        steps; at least all of them where there is none."""
        if not self.reuse or not self._runner.cache.has_states:
            return request.pending_tokens
        cuts = self._cuts(request, request.computed_tokens, request.to_read)
        return min(cuts, default=request.to_read) - request.computed_tokens

    def computed(self, request: Request, before: int) -> None:
        """A step has computed tokens of a prompt behind the first `before`: they may be shared."""
        if not self.reuse or request.slot is None:
            return
        tokens = self._kept(request)
        self._kv.publish(request.slot, tokens)
        if self._runner.cache.has_checkpoints:
            for cut in self._cuts(request, before, len(tokens)):
                self._kv.save(request.slot, cut)
            if not request.prefilling:
                # Most prompts of a conversation go on behind this one, and the same one is asked
                # again for another answer: its last token is read to have logits.
                self._kv.keep(request.slot, tokens[:-1])

    def release(self, request: Request) -> None:
        """The request runs no more, at whatever point: its computed tokens are kept, unless it
        failed, since what was computed may be what is wrong."""
        slot = _slot(request)
        if request.failure is not None:
            self._kv.fail(slot)
        else:
            self._kv.end(slot, self._kept(request) if self.reuse else _NONE)
        self._runner.free_slot(slot)
        self._free.append(slot)

    def reclaim(self) -> None:
        """No request runs: a slot that an interruption left to none is free too."""
        for slot in sorted(set(range(self.count)) - set(self._free)):
            self._runner.free_slot(slot)
            self._free.append(slot)

    def _will_keep(self, other: Request, length: int) -> int:
        """How many of its first tokens can be shared when it has read them."""
        if not self._runner.cache.has_checkpoints or other.to_read - length <= REWIND:
            return length
        return max(self._cuts(other, 0, length), default=0)

    def _cuts(self, request: Request, first: int, last: int) -> list[int]:
        """Where checkpoints are made behind `first` tokens and up to `last`: at the last full block
        of messages, unless they are short, and every so many tokens."""
        least = _LEAST_APART_IN_STEPS if self._runner.cache.has_states else _LEAST_APART
        ends = sorted({end - end % KV_BLOCK for end in request.boundaries})
        cuts: list[int] = []
        before = 0
        for end in [*ends, last + 1]:
            while before + _APART < end:
                before += _APART
                cuts.append(before)
            if end - before >= least and end <= last:
                before = end
                cuts.append(end)
        return [cut for cut in cuts if first < cut <= last]

    def _running(self, running: Iterable[Request]) -> list[Running]:
        return [
            Running(_slot(other), self._kept(other))
            for other in running
            if other.computed_tokens and other.slot is not None
        ]

    def _kept(self, request: Request) -> Tokens:
        """The tokens whose entries are those that reading them as a prompt would leave. An
        interrupted step may have left more or fewer entries than the request counts."""
        length = min(request.computed_tokens, self._runner.cache.length(_slot(request)))
        if not self._runner.writes_as_it_reads:
            length = min(length, len(request.prompt))
        return np.array(request.sampling.seen[:length], dtype=np.int64)


def _to_read(request: Request) -> Tokens:
    """From its array of tokens: a tuple takes forty times as long."""
    return np.array(request.sampling.seen[: request.to_read], dtype=np.int64)


def _slot(request: Request) -> int:
    assert request.slot is not None, "a running request has a slot"
    return request.slot
