"""Follows one JSON value through text that arrives in pieces.

Two mistakes that models often make are repaired, so that the value can be read: control characters
within strings (a line break, above all) are written as escapes, and the backslash of an unknown
escape is doubled. Any other mistake breaks the value."""

from __future__ import annotations

import json
import re

_SPACE = re.compile(r"[ \t\r\n]+")
_CHARACTERS = re.compile(r'[^"\\\x00-\x1f]+')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE_BEGINNING = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_WORD = re.compile(r"[-+.\w]+", re.ASCII)
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")

# What may come next.
_VALUE, _VALUE_OR_END, _KEY, _KEY_OR_END, _COLON, _AFTER_VALUE = range(6)


class JsonScanner:
    def __init__(self) -> None:
        self.done = False  # the value is complete
        self.broken = False  # the text cannot be a value
        self._open: list[str] = []  # the brackets that close what is open
        self._next = _VALUE
        self._in_string = False

    def feed(self, text: str) -> tuple[int, str]:
        """How many characters of `text` belong to the value for certain, and what they are as
        JSON. The others are to be fed again, with those that follow."""
        at, written = 0, []
        while at < len(text) and not self.done:
            step = self._string(text, at) if self._in_string else self._token(text, at)
            if step is None or self.broken:
                break
            length, as_json = step
            at += length
            written.append(as_json)
        return at, "".join(written)

    def _string(self, text: str, at: int) -> tuple[int, str] | None:
        """None: more text is needed to tell."""
        found = _CHARACTERS.match(text, at)
        if found:
            return len(found.group()), found.group()
        if text[at] == '"':
            self._in_string = False
            if self._next != _COLON:
                self._value_ends()
            return 1, '"'
        if text[at] != "\\":
            return 1, json.dumps(text[at])[1:-1]
        found = _ESCAPE.match(text, at)
        if found:
            return len(found.group()), found.group()
        return None if _ESCAPE_BEGINNING.fullmatch(text, at) else (1, "\\\\")

    def _token(self, text: str, at: int) -> tuple[int, str] | None:
        found = _SPACE.match(text, at)
        if found:
            return len(found.group()), found.group()
        if self._next in (_VALUE, _VALUE_OR_END) and text[at] not in ']{["':
            return self._word(text, at)
        self._punctuation(text[at])
        return 1, text[at]

    def _word(self, text: str, at: int) -> tuple[int, str] | None:
        """A number, true, false or null: known when it has ended."""
        found = _WORD.match(text, at)
        if found and found.end() == len(text):
            return None
        if not found or not _SCALAR.fullmatch(found.group()):
            self.broken = True
            return None
        self._value_ends()
        return len(found.group()), found.group()

    def _punctuation(self, character: str) -> None:
        expected = self._next
        if character in "{[" and expected in (_VALUE, _VALUE_OR_END):
            self._open.append("}" if character == "{" else "]")
            self._next = _KEY_OR_END if character == "{" else _VALUE_OR_END
        elif character == '"' and expected in (_VALUE, _VALUE_OR_END, _KEY, _KEY_OR_END):
            self._in_string = True
            self._next = _COLON if expected in (_KEY, _KEY_OR_END) else _AFTER_VALUE
        elif character == ":" and expected == _COLON:
            self._next = _VALUE
        elif character == "," and expected == _AFTER_VALUE:
            self._next = _KEY if self._open[-1] == "}" else _VALUE
        elif self._closes(character):
            self._open.pop()
            self._value_ends()
        else:
            self.broken = True

    def _closes(self, character: str) -> bool:
        ends = (_AFTER_VALUE, _KEY_OR_END if character == "}" else _VALUE_OR_END)
        return bool(self._open) and self._open[-1] == character and self._next in ends

    def _value_ends(self) -> None:
        self._next = _AFTER_VALUE
        self.done = not self._open
