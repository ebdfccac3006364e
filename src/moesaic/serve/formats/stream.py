"""Text that arrives in pieces, for parsers written as generators.

A parser is a generator that yields events, and None where it needs more text: it is written as if
the whole text were there. Parts of it are called with `yield from`."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from moesaic.serve.events import Event

T = TypeVar("T")
Steps = Generator[Event | None, None, T]

SPACE = " \t\r\n"
_SPACE = re.compile(f"[{SPACE}]*")


class Malformed(Exception):
    """The text does not go on as the format demands, or has ended too early."""


class Stream:
    """`at` is the next character to read. A method that raises `Malformed` has not advanced it."""

    def __init__(self) -> None:
        self._text = ""
        self.at = 0
        self._kept: int | None = None  # a place to which the reader may want to go back
        self._ended = False

    def feed(self, piece: str) -> None:
        assert not self._ended, "the text has ended"
        start = self.at if self._kept is None else min(self._kept, self.at)
        self._text = self._text[start:] + piece
        self.at -= start
        if self._kept is not None:
            self._kept -= start

    def end(self) -> None:
        self._ended = True

    @property
    def rest(self) -> str:
        """All text that has arrived and was not read."""
        return self._text[self.at :]

    def take_rest(self) -> str:
        text, self.at = self.rest, len(self._text)
        return text

    # A place to go back to.

    def keep(self, back: int = 0) -> None:
        """Mark the place so many characters back, which were just read: `rewind` returns to it."""
        self._kept = self.at - back

    def release(self) -> None:
        """Forget the place: text that was read is final."""
        self._kept = None

    def rewind(self) -> None:
        """Return to the place that was marked, or stay where nothing is marked."""
        if self._kept is not None:
            self.at = self._kept

    def since_kept(self) -> str:
        return self._text[self._kept : self.at]

    # Reading: each waits until its result does not depend on text that is still to come.

    def wait(self) -> Steps[None]:
        if self._ended:
            raise Malformed
        yield None

    def is_at_end(self) -> Steps[bool]:
        while self.at == len(self._text) and not self._ended:
            yield None
        return self.at == len(self._text)

    def peek(self) -> Steps[str]:
        """The next character, or nothing at the end."""
        ended = yield from self.is_at_end()
        return "" if ended else self._text[self.at]

    def take_one(self) -> Steps[str]:
        """Read the next character, or nothing at the end."""
        character = yield from self.peek()
        self.at += len(character)
        return character

    def begins(self, literal: str) -> Steps[bool]:
        """Whether `literal` comes next; it is not read."""
        while True:
            there = self._text[self.at : self.at + len(literal)]
            if len(there) == len(literal) or self._ended or not literal.startswith(there):
                return there == literal
            yield None

    def take(self, literal: str) -> Steps[None]:
        found = yield from self.begins(literal)
        if not found:
            raise Malformed
        self.at += len(literal)

    def take_first(self, literals: Sequence[str]) -> Steps[str]:
        """Read the first of `literals` that comes next."""
        for literal in literals:
            found = yield from self.begins(literal)
            if found:
                self.at += len(literal)
                return literal
        raise Malformed

    def take_if(self, literal: str) -> Steps[bool]:
        """Read `literal` and white space before it where both come next, otherwise nothing."""
        start = self.at
        kept, self._kept = self._kept, start if self._kept is None else self._kept
        offset = start - self._kept
        yield from self.skip_space()
        found = yield from self.begins(literal)
        if found:
            self.at += len(literal)
        else:
            self.at = self._kept + offset
        if kept is None:
            self._kept = None
        return found

    def skip_space(self) -> Steps[None]:
        while True:
            self.at = _space_end(self._text, self.at)
            if self.at < len(self._text) or self._ended:
                return
            yield None

    def match(self, pattern: re.Pattern[str], end: str) -> Steps[str]:
        """Read text that `pattern` matches as a whole, and the text `end` after it. `pattern` must
        match every beginning of such a text: what it refuses is refused at once."""
        while True:
            found = self._text.find(end, self.at)
            there = self._text[self.at : found] if found >= 0 else self._text[self.at :]
            held = 0 if found >= 0 else held_length(there, (end,))
            if not pattern.fullmatch(there[: len(there) - held]):
                raise Malformed
            if found >= 0:
                self.at = found + len(end)
                return there
            yield from self.wait()

    def until(self, end: str) -> Steps[str]:
        """Read the text before `end`, and `end`."""
        while True:
            found = self._text.find(end, self.at)
            if found >= 0:
                text, self.at = self._text[self.at : found], found + len(end)
                return text
            yield from self.wait()

    def pass_until(
        self, ends: Sequence[str], event: Callable[[str], Event], held: str = ""
    ) -> Steps[str | None]:
        """Yield text as events up to the first of `ends`, which stays unread; None: the text has
        ended. Characters of `held` directly before one of `ends` or the text's end stay unread."""
        while True:
            found = first_of(self._text, ends, self.at)
            stop = len(self._text) if found is None else found[0]
            if found is None and not self._ended:
                stop -= held_length(self._text[self.at :], ends)
            stop = self.at + len(self._text[self.at : stop].rstrip(held))
            if stop > self.at:
                text, self.at = self._text[self.at : stop], stop
                yield event(text)
            if found is not None:
                return found[1]
            if self._ended:
                return None
            yield None


def first_of(text: str, markers: Sequence[str], start: int = 0) -> tuple[int, str] | None:
    """The marker that begins first, with its place; the longest of several at one place."""
    found = [(place, -len(m), m) for m in markers if (place := text.find(m, start)) >= 0]
    if not found:
        return None
    place, _, marker = min(found)
    return place, marker


def held_length(text: str, markers: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of a marker."""
    lengths = (
        length
        for marker in markers
        for length in range(min(len(marker) - 1, len(text)), 0, -1)
        if text.endswith(marker[:length])
    )
    return max(lengths, default=0)


def _space_end(text: str, start: int) -> int:
    found = _SPACE.match(text, start)
    assert found is not None, "it matches everywhere"
    return found.end()
