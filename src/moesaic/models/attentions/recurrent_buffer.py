"""What one layer with linear attention keeps of every sequence, in place of keys and values.

A state cannot be shortened. So a slot has two: the *current* one, and a *base*, some tokens older,
with a log of the inputs since then. A state in between is computed again from these: that is how a
sequence is shortened by up to `REWIND` tokens (drafts, tokens that run again), and how a step that
failed is undone. Nothing is computed when a sequence is shortened, but when it goes on.

Every change is made in an order that leaves the slot's mark true at any moment: whatever is about
to be overwritten is unmarked first.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from moesaic.model_info.linear_attention import LOGGED, LinearAttentionSizes
from moesaic.model_info.sliding_window import REWIND


class State(NamedTuple):
    matrix: torch.Tensor  # fp32 [value heads, key, value]
    window: torch.Tensor  # the last inputs of the convolution [kernel - 1, channels]


class Inputs(NamedTuple):
    """The inputs of some tokens."""

    rows: torch.Tensor  # of the convolution [tokens, channels]
    rates: torch.Tensor  # logits of learning and forgetting [tokens, 2 * value heads]

    def part(self, tokens: slice) -> Inputs:
        return Inputs(self.rows[tokens], self.rates[tokens])


class Advance(Protocol):
    def __call__(self, state: State, inputs: Inputs, into: State) -> torch.Tensor:
        """The results of some tokens after a state [tokens, value heads, value]; the state after
        them is in `into`, which may be the same."""


class Mark(NamedTuple):
    """What a slot's memory holds: after how many tokens each state is, None while it is none."""

    base_at: int | None = None
    current_at: int | None = None
    logged: int = 0  # tokens after the base
    first: int = 0  # the log's row of the first of them; the log goes round
    base: int = 0  # which of the two states is the base


class SavedState(NamedTuple):
    """A state in host memory, and the inputs of tokens behind it."""

    state: State
    inputs: Inputs

    @property
    def nbytes(self) -> int:
        return int(sum(each.nbytes for each in (*self.state, *self.inputs)))


class RecurrentBuffer:
    def __init__(self, shape: LinearAttentionSizes, slots: int, like: torch.Tensor) -> None:
        """`like` gives the device, and the dtype of inputs."""
        matrix = (shape.value_heads, shape.key_dim, shape.value_dim)
        self._matrices = like.new_zeros((2, slots, *matrix), dtype=torch.float32)
        window = (shape.conv_kernel - 1, shape.channels)
        self._windows = like.new_zeros((2, slots, *window))
        self._rows = like.new_zeros((slots, LOGGED, shape.channels))
        rates = (slots, LOGGED, 2 * shape.value_heads)
        self._rates = like.new_zeros(rates, dtype=torch.float32)
        self._marks = [Mark()] * slots

    @property
    def nbytes(self) -> int:
        kept = (self._matrices, self._windows, self._rows, self._rates)
        return sum(int(each.nbytes) for each in kept)

    def clear(self, slot: int) -> None:
        self._marks[slot] = Mark()

    def least_length(self, slot: int) -> int:
        """The least length that a sequence can be shortened to, as to any above it."""
        mark = self._marks[slot]
        return _known(mark.current_at) if mark.base_at is None else mark.base_at

    def reaches(self, slot: int, length: int) -> bool:
        """Whether the state after so many tokens can be had."""
        mark = self._marks[slot]
        return length in (0, mark.current_at) or _covered(mark, length)

    def copy(self, source: int, slot: int) -> None:
        self._marks[slot] = Mark()
        for kept in (self._matrices, self._windows):
            kept[:, slot] = kept[:, source]
        for log in (self._rows, self._rates):
            log[slot] = log[source]
        self._marks[slot] = self._marks[source]

    def save(self, slot: int, length: int) -> SavedState:
        """The state after so many tokens, which can be had (see `reaches`): the current one, or
        the base with the tokens behind it."""
        mark = self._marks[slot]
        if mark.current_at == length:
            state, tokens = self._state(slot, 1 - mark.base), 0
        else:
            assert _covered(mark, length), "the state after so many tokens is not kept"
            state, tokens = self._state(slot, mark.base), length - _known(mark.base_at)
        inputs = self._log(slot, tokens)
        return SavedState(
            State(*(_on_host(each) for each in state)), Inputs(*(_on_host(each) for each in inputs))
        )

    def restore(self, slot: int, length: int, saved: SavedState) -> None:
        """A slot that is empty gets what was saved after so many tokens."""
        self._marks[slot] = Mark()
        for kept, part in zip(self._state(slot, 0), saved.state, strict=True):
            kept.copy_(part)
        tokens = len(saved.inputs.rows)
        for log, rows in zip((self._rows, self._rates), saved.inputs, strict=True):
            log[slot, :tokens] = rows.to(log.device)
        self._marks[slot] = Mark(base_at=length - tokens, logged=tokens)

    def extend(self, slot: int, at: int, inputs: Inputs, advance: Advance) -> torch.Tensor:
        """The results of the tokens from position `at` on, with the state there."""
        self._bring_to(slot, at, advance)
        if len(inputs.rows) > REWIND:
            return self._read_many(slot, at, inputs, advance)
        self._make_room(slot, len(inputs.rows), advance)
        self._append(slot, inputs)
        return self._advance_current(slot, at, inputs, advance)

    def _read_many(self, slot: int, at: int, inputs: Inputs, advance: Advance) -> torch.Tensor:
        """More tokens than a sequence is shortened by. The base is put before the last of them;
        the current state stays where it is, so that the step can be undone."""
        split = len(inputs.rows) - REWIND
        mark = self._marks[slot]
        base, current = self._state(slot, mark.base), self._state(slot, 1 - mark.base)
        self._marks[slot] = mark._replace(base_at=None, logged=0)
        before = advance(current, inputs.part(slice(split)), into=base)
        log = inputs.part(slice(split, None))
        after = advance(base, log, into=State(*(torch.empty_like(each) for each in base)))
        self._marks[slot] = self._marks[slot]._replace(base_at=at + split, first=0)
        self._append(slot, log)
        return torch.cat((before, after))

    def _advance_current(
        self, slot: int, at: int, inputs: Inputs, advance: Advance
    ) -> torch.Tensor:
        mark = self._marks[slot]
        current = self._state(slot, 1 - mark.base)
        self._marks[slot] = mark._replace(current_at=None)
        results = advance(current, inputs, into=current)
        self._marks[slot] = mark._replace(current_at=at + len(inputs.rows))
        return results

    def _bring_to(self, slot: int, length: int, advance: Advance) -> None:
        """The current state is the one after so many tokens, and the log ends there."""
        mark = self._marks[slot]
        if not length:
            self._marks[slot] = Mark()
            self._matrices[:, slot].zero_()
            self._windows[:, slot].zero_()
            self._marks[slot] = Mark(base_at=0, current_at=0)
        elif mark.current_at == length and not _covered(mark, length):
            # A step that read many tokens was undone: the base is beyond.
            self._marks[slot] = mark._replace(base_at=None, logged=0)
            for kept in (self._matrices, self._windows):
                kept[mark.base, slot] = kept[1 - mark.base, slot]
            self._marks[slot] = Mark(length, length, base=mark.base)
        else:
            self._again_from_base(slot, length, advance)

    def _again_from_base(self, slot: int, length: int, advance: Advance) -> None:
        mark = self._marks[slot]
        assert _covered(mark, length), "the state after so many tokens is not kept"
        mark = mark._replace(logged=length - _known(mark.base_at))
        self._marks[slot] = mark
        if mark.current_at == length:
            return
        self._marks[slot] = mark._replace(current_at=None)
        base, current = self._state(slot, mark.base), self._state(slot, 1 - mark.base)
        if mark.logged:
            advance(base, self._log(slot, mark.logged), into=current)
        else:
            for old, new in zip(base, current, strict=True):
                new.copy_(old)
        self._marks[slot] = mark._replace(current_at=length)

    def _make_room(self, slot: int, tokens: int, advance: Advance) -> None:
        """Make room in the log: where there is none, the base moves up to `REWIND` tokens before
        its end."""
        mark = self._marks[slot]
        if mark.logged + tokens <= LOGGED:
            return
        moved = mark.logged - REWIND
        self._marks[slot] = mark._replace(base_at=None)
        base = self._state(slot, mark.base)
        advance(base, self._log(slot, moved), into=base)
        self._marks[slot] = mark._replace(
            base_at=_known(mark.base_at) + moved,
            logged=REWIND,
            first=(mark.first + moved) % LOGGED,
        )

    def _append(self, slot: int, inputs: Inputs) -> None:
        mark, tokens = self._marks[slot], len(inputs.rows)
        rows = self._places(mark.first + mark.logged, tokens)
        self._rows[slot, rows] = inputs.rows
        self._rates[slot, rows] = inputs.rates.float()
        self._marks[slot] = mark._replace(logged=mark.logged + tokens)

    def _log(self, slot: int, tokens: int) -> Inputs:
        """The first tokens after the base."""
        rows = self._places(self._marks[slot].first, tokens)
        return Inputs(self._rows[slot, rows], self._rates[slot, rows])

    def _places(self, first: int, tokens: int) -> torch.Tensor:
        return torch.arange(first, first + tokens, device=self._rows.device) % LOGGED

    def _state(self, slot: int, which: int) -> State:
        return State(self._matrices[which, slot], self._windows[which, slot])


def _on_host(part: torch.Tensor) -> torch.Tensor:
    """A copy."""
    return part.clone() if part.is_cpu else part.cpu()


def _covered(mark: Mark, length: int) -> bool:
    """Whether the base and the log cover this length."""
    return mark.base_at is not None and 0 <= length - mark.base_at <= mark.logged


def _known(length: int | None) -> int:
    return 0 if length is None else length
