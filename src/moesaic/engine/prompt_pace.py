"""How many tokens of prompts join a step in which other requests decode, so that these do not wait
too long for their next tokens.

A step with more tokens of prompts reads them faster, but every decoding request waits for its end.
How long such a step takes is not known before: the number follows what the last ones took.
"""

from __future__ import annotations

from moesaic.core.units import NS_PER_MS

LEAST = 64  # tokens: fewer read all experts again for little
_FIRST = 256
_MOST_CHANGE = 2.0  # from one step to the next


class PromptPace:
    def __init__(self, most_ms: float | None, most_tokens: int) -> None:
        """`most_ms` of a step with decoding requests; None: no limit. `most_tokens` of a step."""
        self._most_ns = None if most_ms is None else most_ms * NS_PER_MS
        self._most_tokens = most_tokens
        self._tokens = float(min(_FIRST, most_tokens))

    @property
    def tokens(self) -> int:
        """At most so many tokens of prompts join."""
        if self._most_ns is None:
            return self._most_tokens
        return int(self._tokens)

    def add(self, read: int, step_ns: int) -> None:
        """A step with decoding requests has read so many tokens of prompts."""
        if self._most_ns is None or not step_ns:
            return
        change = self._most_ns / step_ns
        if change > 1 and read < int(self._tokens):
            return  # there were no more to read
        change = min(max(change, 1 / _MOST_CHANGE), _MOST_CHANGE)
        least = min(LEAST, self._most_tokens)
        self._tokens = min(max(change * read, least), self._most_tokens)
