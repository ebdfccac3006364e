"""Token ids as a tokenizer's file states them: each belongs to one token, and none is beyond the
model's vocabulary. The `tokenizers` library accepts files that say otherwise and then uses other
ids than the file, or decodes to either token."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import tokenizers

from moesaic.core.errors import BadTokenizer
from moesaic.core.parsing import short

_ADDED = re.compile(r'"added_tokens"\s*:\s*(?=\[)')


def check_added_ids(backend: tokenizers.Tokenizer, content: bytes, file: Path) -> None:
    """The library numbers added tokens by itself, whatever ids the file gives them. Only their
    list is parsed here, since parsing a whole file again would take seconds."""
    for token in _added_tokens(content):
        text, stated = token.get("content"), token.get("id")
        used = backend.token_to_id(text) if isinstance(text, str) else None
        if used is not None and stated != used:
            what = f"{short(text)} is stated to be {short(stated)}, but its place in the vocabulary"
            raise BadTokenizer(file, "added_tokens", f"{what} is {used}; fetch the file again")


def count_ids(backend: tokenizers.Tokenizer, file: Path, vocab_size: int | None) -> int:
    """One more than the largest id. `vocab_size` is what the model has rows for."""
    vocabulary = backend.get_vocab(with_added_tokens=True)
    count = 1 + max(vocabulary.values(), default=-1)
    if count == 0:
        raise BadTokenizer(file, "vocabulary", "is empty, expected at least one token")
    if vocab_size is not None and count > vocab_size:
        what = f"has {count} tokens, the model knows {vocab_size}: use the file published with it"
        raise BadTokenizer(file, "vocabulary", what)
    _refuse_shared_ids(vocabulary, file)
    return count


def _refuse_shared_ids(vocabulary: dict[str, int], file: Path) -> None:
    if len(set(vocabulary.values())) == len(vocabulary):
        return
    first: dict[int, str] = {}
    for text, number in sorted(vocabulary.items()):
        other = first.setdefault(number, text)
        if other != text:
            what = f"{short(other)} and {short(text)} have the same id, {number}"
            raise BadTokenizer(file, "vocabulary", f"{what}; fetch the file again")


def _added_tokens(content: bytes) -> list[dict[str, Any]]:
    """The list of a file that the library has read, so it is valid JSON."""
    text = content.decode("utf-8", "replace")
    place = _ADDED.search(text)
    if place is None:
        return []
    found, _ = json.JSONDecoder().raw_decode(text, place.end())
    return [each for each in found if isinstance(each, dict)]
