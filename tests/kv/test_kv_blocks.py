"""Does every sequence find its own tokens? Is no block lost, and none used twice?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moesaic.engine.kv import prefix_tree
from moesaic.engine.kv.kv_blocks import KVBlocks, Running
from moesaic.engine.kv.prefix_tree import NONE, Tokens
from moesaic.model_info.kv_blocks import KV_BLOCK, blocks_of
from moesaic.model_info.sliding_window import REWIND
from moesaic.models.attentions.checkpoint import Checkpoint

SLOTS, LONGEST, BLOCKS, LEAST = 3, 4 * KV_BLOCK, 9, 16
COPIES = 5  # in main memory
GONE = -1
FEW_OFFERS = 8
# Sequences are alike up to one of these lengths, within a block or at its end.
ALIKE = [10, 48, KV_BLOCK, KV_BLOCK + 20, 2 * KV_BLOCK + 5]


@pytest.fixture(autouse=True, scope="module")
def stale_offers_are_forgotten_soon() -> Iterator[None]:
    """So that few steps meet it."""
    with pytest.MonkeyPatch.context() as change:
        change.setattr(prefix_tree, "_FEW", FEW_OFFERS)
        yield


class SavedTokens(NamedTuple):
    """Stands in for a state."""

    tokens: list[int]
    nbytes: int = 100


class Memory:
    """Of every row the token that was written there; and of every slot, all tokens, as a state has
    them, if there are layers with states."""

    def __init__(self, has_checkpoints: bool = False) -> None:
        self.has_checkpoints = has_checkpoints
        self.states: dict[int, list[int]] = {}
        self.table = np.zeros((SLOTS, blocks_of(LONGEST)), dtype=np.int32)
        self.rows = np.full((BLOCKS, KV_BLOCK), GONE)

    def copy_block(self, source: int, to: int, rows: int) -> None:
        self.rows[to, :rows] = self.rows[source, :rows]

    def changed(self, slot: int, first: int) -> None:
        """There is no copy of the table."""

    def reaches(self, slot: int, length: int) -> bool:
        if not self.has_checkpoints:
            return True
        return len(self.states.get(slot, [])) - REWIND <= length <= len(self.states.get(slot, []))

    def save(self, slot: int, length: int) -> Checkpoint:
        assert self.reaches(slot, length)
        saved: Any = SavedTokens(self.states[slot][:length])
        return Checkpoint(length, {}, {0: saved})

    def begin(self, slot: int, length: int, checkpoint: Checkpoint | None = None) -> None:
        self.states[slot] = []
        if checkpoint is not None:
            saved: Any = checkpoint.states[0]
            self.states[slot] = [*saved.tokens]
        if self.has_checkpoints:
            assert len(self.states[slot]) == length

    def read(self, slot: int, length: int) -> list[int]:
        blocks = self.table[slot, : blocks_of(length)]
        return [int(token) for token in self.rows[blocks].flatten()[:length]]


class Copies:
    """Blocks of such a memory in another one."""

    def __init__(self, memory: Memory, count: int) -> None:
        self.memory, self.rows = memory, np.full((count, KV_BLOCK), GONE)

    def store(self, pairs: Sequence[tuple[int, int]]) -> None:
        for block, copy in pairs:
            self.rows[copy] = self.memory.rows[block]

    def load(self, pairs: Sequence[tuple[int, int]]) -> None:
        for block, copy in pairs:
            self.memory.rows[block] = self.rows[copy]


class Requests(RuleBasedStateMachine):
    has_checkpoints, most_copies = False, 0

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(self.has_checkpoints)
        self.copies = Copies(self.memory, self.most_copies)
        self.kv = KVBlocks(self.memory, BLOCKS, LEAST, 700, self.copies, self.most_copies)
        self.running: dict[int, list[int]] = {}

    @precondition(lambda self: len(self.running) < SLOTS)
    @rule(alike=st.sampled_from(ALIKE), kind=st.integers(0, 2), length=st.integers(1, LONGEST))
    def begin(self, alike: int, kind: int, length: int) -> None:
        wanted = [n if n < alike else 1000 * kind + n for n in range(length)]
        slot = min(set(range(SLOTS)) - self.running.keys())
        others = [Running(other, np.array(has)) for other, has in self.running.items() if has]
        kept, available = self.kv.match(np.array(wanted), others), self.kv.available
        found = self.kv.begin(slot, np.array(wanted), others)
        assert found is not None, "there is always a way without blocks"
        if not self.most_copies:
            assert found == kept or available <= 1, "no block but what would be copied itself"
        assert found == kept or available <= blocks_of(kept), "what is loaded needs blocks"
        assert self.memory.read(slot, found) == wanted[:found]
        self.running[slot] = wanted[:found]
        self._write(slot, wanted[found:])

    @precondition(lambda self: self.running)
    @rule(data=st.data(), count=st.integers(1, 70), kind=st.integers(0, 1))
    def go_on(self, data: st.DataObject, count: int, kind: int) -> None:
        slot = self._one(data)
        begun = len(self.running[slot])
        self._write(slot, [5000 * kind + begun + n for n in range(min(count, LONGEST - begun))])

    @precondition(lambda self: self.running)
    @rule(data=st.data(), computed=st.floats(0, 1))
    def publish(self, data: st.DataObject, computed: float) -> None:
        slot = self._one(data)
        tokens = self.running[slot]
        self.kv.publish(slot, np.array(tokens[: int(computed * len(tokens))], dtype=np.int64))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        slot = self._one(data)
        self.kv.keep(slot, np.array(self.running[slot], dtype=np.int64))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        slot = self._one(data)
        del self.running[slot]
        self.kv.fail(slot)

    @precondition(lambda self: self.running and not self.has_checkpoints)
    @rule(data=st.data(), back=st.integers(0, 100))
    def shrink(self, data: st.DataObject, back: int) -> None:
        slot = self._one(data)
        length = max(len(self.running[slot]) - back, self.kv.published(slot))
        self.kv.shrink(slot, length)
        self.running[slot] = self.running[slot][:length]

    @precondition(lambda self: self.running)
    @rule(data=st.data(), keeps=st.booleans())
    def end(self, data: st.DataObject, keeps: bool) -> None:
        slot = self._one(data)
        tokens = self.running.pop(slot)
        kept = tokens if keeps else tokens[: self.kv.published(slot)]
        self.kv.end(slot, np.array(kept, dtype=np.int64))
        if self.has_checkpoints:
            return
        if len(kept) % KV_BLOCK >= LEAST or not len(kept) % KV_BLOCK:
            assert self.kv.match(np.array(kept, dtype=np.int64)) == len(kept)

    @rule()
    def clear(self) -> None:
        self.kv.clear()
        assert self.kv.available == self.kv.pool.free

    @invariant()
    def every_sequence_has_its_tokens(self) -> None:
        for slot, tokens in self.running.items():
            assert self.memory.read(slot, len(tokens)) == tokens
            assert not self.has_checkpoints or self.memory.states[slot] == tokens

    @invariant()
    def what_is_kept_is_what_it_says(self) -> None:
        for node in self.kv.tree.nodes():
            assert node.block != NONE or node.copy != NONE
            if node.block != NONE:
                assert np.array_equal(self.memory.rows[node.block, : len(node.tokens)], node.tokens)
            if node.copy != NONE:
                assert np.array_equal(self.copies.rows[node.copy, : len(node.tokens)], node.tokens)

    @invariant()
    def copies_are_behind_blocks_and_counted(self) -> None:
        nodes = [*self.kv.tree.nodes()]
        used = [node.copy for node in nodes if node.copy != NONE]
        assert len(set(used)) == len(used) == self.kv.tree.copied <= self.most_copies
        for node in nodes:
            behind = [child.block != NONE for child in node.children.values()]
            assert node.placed == sum(behind)
            assert node.block != NONE or not (any(behind) or node.users)
        self.copies.rows[[copy for copy in range(self.most_copies) if copy not in used]] = GONE

    @invariant()
    def blocks_are_counted(self) -> None:
        held, unused = np.zeros(BLOCKS, dtype=int), 0
        for node in self.kv.tree.nodes():
            if node.block != NONE:
                held[node.block] += 1 + node.users
                unused += not node.users
        for slot in self.running:
            held[list(self.kv.owned(slot))] += 1
        assert np.array_equal(self.kv.pool.holders, held)
        assert self.kv.pool.free == int((held == 0).sum())
        assert self.kv.available == self.kv.pool.free + unused
        assert self.kv.checkpoints.nbytes <= 700
        self.memory.rows[held == 0] = GONE  # nothing may read them any more

    def _one(self, data: st.DataObject) -> int:
        return int(data.draw(st.sampled_from(sorted(self.running))))

    def _write(self, slot: int, tokens: list[int]) -> None:
        """As a step does: blocks for all of them, or none is computed."""
        begun = len(self.running[slot])
        missing, available = blocks_of(begun + len(tokens)) - blocks_of(begun), self.kv.available
        grown = self.kv.grow(slot, begun + len(tokens))
        assert grown == (missing <= available)
        if not grown:
            return
        for position, token in enumerate(tokens, start=begun):
            block = self.memory.table[slot, position // KV_BLOCK]
            assert not self._is_read(slot, int(block), position % KV_BLOCK)
            self.memory.rows[block, position % KV_BLOCK] = token
        self.running[slot] += tokens
        self.memory.states[slot] = [*self.running[slot]]

    def _is_read(self, slot: int, block: int, row: int) -> bool:
        """Whether another sequence has the block, or it is kept with this row."""
        for other, tokens in self.running.items():
            if other != slot and block in self.memory.table[other, : blocks_of(len(tokens))]:
                return True
        kept = (node for node in self.kv.tree.nodes() if node.block == block)
        return any(len(node.tokens) > row for node in kept)


class RequestsWithStates(Requests):
    has_checkpoints = True


class RequestsWithCopies(Requests):
    most_copies = COPIES


class RequestsWithStatesAndCopies(RequestsWithStates):
    most_copies = COPIES


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestRequestsWithStates = RequestsWithStates.TestCase
TestRequestsWithStates.settings = TestRequests.settings
TestRequestsWithCopies = RequestsWithCopies.TestCase
TestRequestsWithCopies.settings = TestRequests.settings
TestRequestsWithStatesAndCopies = RequestsWithStatesAndCopies.TestCase
TestRequestsWithStatesAndCopies.settings = TestRequests.settings


def tokens_of(first: int, count: int) -> Tokens:
    return np.arange(first, first + count)


def made() -> tuple[KVBlocks, Memory]:
    memory = Memory()
    return KVBlocks(memory, BLOCKS, LEAST), memory


def test_a_sequence_alone_lies_in_one_piece() -> None:
    kv, memory = made()
    kv.grow(0, LONGEST)
    assert memory.table[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("step", [KV_BLOCK, LONGEST])
def test_sequences_lie_beside_each_other(step: int) -> None:
    kv, memory = made()
    for length in range(step, LONGEST + 1, step):
        assert kv.grow(0, length)
        assert kv.grow(1, length)
    assert len(set(memory.table[:2].flatten().tolist())) == 8
    assert not kv.grow(2, 2 * KV_BLOCK), "one block is left"
    assert kv.grow(2, KV_BLOCK)


def test_what_was_not_used_for_longest_is_given_up_first() -> None:
    kv, _ = made()
    one, other = tokens_of(0, LONGEST), tokens_of(9000, LONGEST)
    for tokens in (one, other):
        kv.grow(0, len(tokens))
        kv.end(0, tokens)
    again = one[: 2 * KV_BLOCK]
    assert kv.begin(0, again) == len(again)
    kv.end(0, again)
    kv.grow(1, LONGEST)
    assert kv.match(one) == len(again), "its end was not used again"
    assert kv.match(other) == LONGEST - KV_BLOCK, "one more block was needed"


def test_using_the_same_again_and_again_takes_no_memory() -> None:
    kv, _ = made()
    one = tokens_of(0, LONGEST)
    kv.grow(0, LONGEST)
    kv.end(0, one)
    for _ in range(100):
        assert kv.begin(0, one) == LONGEST
        kv.end(0, one)
    assert kv.tree.offers <= max(FEW_OFFERS, 4 * LONGEST // KV_BLOCK)
    kv.grow(1, LONGEST)
    kv.grow(2, LONGEST)
    assert kv.match(one) == KV_BLOCK, "what has to go is known"


def test_what_is_given_up_comes_back_from_main_memory() -> None:
    memory = Memory()
    copies = Copies(memory, COPIES)
    kv = KVBlocks(memory, BLOCKS, LEAST, 0, copies, COPIES)
    one = tokens_of(0, LONGEST)
    kv.grow(0, LONGEST)
    memory.rows[memory.table[0]] = one.reshape(-1, KV_BLOCK)
    kv.end(0, one)
    for slot in range(3):
        assert kv.grow(slot, (BLOCKS // 3) * KV_BLOCK)
    assert (kv.tree.copied, kv.pool.free) == (4, 0)
    memory.rows[:] = GONE
    for slot in range(3):
        kv.drop(slot)
    assert kv.begin(1, one) == LONGEST
    assert memory.read(1, LONGEST) == one.tolist()
    assert kv.loaded_tokens == LONGEST
    kv.drop(1)
    for slot in range(3):
        kv.grow(slot, (BLOCKS // 3) * KV_BLOCK)
    assert kv.tree.copied == 4, "nothing is copied twice"
