"""The text of one request while it is generated: detokenizing and stop strings."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from moesaic.models.text.detokenizer import Detokenizer
from moesaic.models.text.tokenizer import Tokenizer


class OutputText:
    """The text of an answer. Without a tokenizer there is none."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        stop: Iterable[str] = (),
        keep_special: Iterable[str] = (),
    ) -> None:
        """`keep_special` are texts of special tokens that are shown; those that the tokenizer does
        not have say nothing."""
        self._detokenizer = None
        if tokenizer is not None:
            kept = frozenset(tokenizer.added[t] for t in keep_special if t in tokenizer.added)
            self._detokenizer = Detokenizer(tokenizer, keep=kept)
        self._stop = StopChecker(stop)
        self._pieces: list[str] = []

    def feed(self, token: int) -> Shown:
        if self._detokenizer is None:
            return Shown("", False)
        return self._noted(self._stop.feed(self._detokenizer.feed(token)))

    def finish(self) -> Shown:
        """The rest, now that nothing follows; not after a stop string."""
        if self._detokenizer is None:
            return Shown("", False)
        shown = self._stop.feed(self._detokenizer.finish())
        if not shown.stopped:
            last = self._stop.finish()
            shown = Shown(shown.text + last.text, last.stopped)
        return self._noted(shown)

    @property
    def may_stop(self) -> bool:
        """Whether there is text that would be the last."""
        return self._detokenizer is not None and self._stop.may_stop

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended it."""
        return self._stop.stopped_by

    @property
    def text(self) -> str | None:
        """All that was shown."""
        return None if self._detokenizer is None else "".join(self._pieces)

    def _noted(self, shown: Shown) -> Shown:
        self._pieces.append(shown.text)
        return shown


# Finding stop strings in text that arrives in pieces, showing nothing that may belong to one.


@dataclass(frozen=True, slots=True)
class Shown:
    text: str  # what may be shown now
    stopped: bool  # a stop string was found: this text is the last


class StopChecker:
    """All text shown is the text fed, cut where the first stop string begins, however the text
    was split into pieces. Held back is only what may be the beginning of a stop string."""

    def __init__(self, stop: Iterable[str]) -> None:
        self._stop = tuple(stop)
        assert all(self._stop), "an empty string is in every text"
        self._any = re.compile("|".join(map(re.escape, self._stop)))
        self._sorted = sorted(self._stop)  # all that begin alike stand together
        self._firsts = {each[0] for each in self._stop}
        self._longest = max(map(len, self._stop), default=0)
        self._held = ""
        self._stopped = False
        self.stopped_by: str | None = None

    @property
    def may_stop(self) -> bool:
        return bool(self._stop)

    def feed(self, piece: str) -> Shown:
        assert not self._stopped, "after a stop string no more text is wanted"
        text = self._held + piece
        found, partial = self._found(text), self._partial_match(text)
        if found is None or (partial is not None and partial < found):
            # A longer stop string may begin before one that is complete: the earlier decides.
            shown, self._held = text[:partial], text[partial:] if partial is not None else ""
            return Shown(shown, False)
        return self._stop_at(text, found)

    def finish(self) -> Shown:
        """No more text comes: what was held back is output."""
        text, found = self._held, self._found(self._held)
        if found is not None:
            return self._stop_at(text, found)
        self._held = ""
        return Shown(text, self._stopped)

    def _stop_at(self, text: str, start: int) -> Shown:
        self._held, self._stopped = "", True
        self.stopped_by = next(stop for stop in self._stop if text.startswith(stop, start))
        return Shown(text[:start], True)

    def _found(self, text: str) -> int | None:
        """The position at which the first stop string begins."""
        found = self._any.search(text) if self._stop else None
        return None if found is None else found.start()

    def _partial_match(self, text: str) -> int | None:
        """The first position from which the rest may become a stop string."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._firsts and self._begins_one(text[start:]):
                return start
        return None

    def _begins_one(self, text: str) -> bool:
        """Whether a stop string begins with it and goes on: it would be the next in order."""
        place = bisect_right(self._sorted, text)
        return place < len(self._sorted) and self._sorted[place].startswith(text)
