"""Text while it is being generated: tokens go in one by one, text that is final comes out.

A token alone has no text: it may hold part of a character, or a space that only shows after
another token. So a few tokens are decoded together with those before them, and what is new is
given out. How many they are does not depend on the length of the text.
"""

from __future__ import annotations

from moesaic.models.text.tokenizer import Tokenizer

# The bytes of an unfinished character are at most three, in as many tokens. One would do for
# decoders that hide the space of the first token they see.
_CONTEXT = 3
_REPLACEMENT = "\ufffd"


class Detokenizer:
    """One text. All pieces together are what `Tokenizer.decode` makes of all tokens at once."""

    def __init__(
        self, tokenizer: Tokenizer, skip_special: bool = True, keep: frozenset[int] = frozenset()
    ) -> None:
        """`keep` are special tokens that are shown though others are skipped."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._keep = keep
        self._start()

    def feed(self, token_id: int) -> str:
        """The text that is final since the last call, perhaps none."""
        skip = self._skip_special and token_id not in self._keep
        if not self._tokenizer.is_text(token_id, skip):
            return ""
        self._waiting.append(token_id)
        # A run of bytes is text or rubbish as a whole: decoders look at it when it has ended.
        return "" if self._tokenizer.is_byte(token_id) else self._advance()

    def finish(self) -> str:
        """The rest, now that nothing follows. What is fed next begins another text."""
        rest = self._decode(self._context + self._waiting)[self._given :]
        self._start()
        return rest

    def _start(self) -> None:
        self._context: list[int] = []  # the last tokens before those that wait
        self._given = 0  # characters of the context's text that were given out
        self._waiting: list[int] = []

    def _advance(self) -> str:
        text = self._decode(self._context + self._waiting)
        # Only a replacement at the very end may still become a character.
        held = 1 if text.endswith(_REPLACEMENT) else 0
        new = text[self._given : len(text) - held]
        self._context = (self._context + self._waiting)[-_CONTEXT:]
        self._given = len(self._decode(self._context)) - held
        self._waiting = []
        return new

    def _decode(self, ids: list[int]) -> str:
        # Tokens to be skipped were not fed in.
        return self._tokenizer.decode(ids, self._skip_special and not self._keep)
