"""The text of one request while it is generated: detokenizing and stop strings."""

from __future__ import annotations

from collections.abc import Iterable

from moesaic.engine.sampling.stop import Shown, StopChecker
from moesaic.models.text.detokenizer import Detokenizer
from moesaic.models.text.tokenizer import Tokenizer


class OutputText:
    """Without a tokenizer there is no text: nothing is ever shown."""

    def __init__(self, tokenizer: Tokenizer | None, stop: Iterable[str] = ()) -> None:
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer)
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
    def text(self) -> str | None:
        """All that was shown."""
        return None if self._detokenizer is None else "".join(self._pieces)

    def _noted(self, shown: Shown) -> Shown:
        self._pieces.append(shown.text)
        return shown
