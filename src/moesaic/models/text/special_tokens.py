"""Special tokens: those a tokenizer's config names (bos_token, ...) and those it marks.

Special means: found in text whatever stands around it, and left out where text is shown. The
tokenizer.json says which tokens are, and the config may add to that, as in the stock tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from moesaic.core.errors import BadTokenizer
from moesaic.models.text.tokenizer_files import CONFIG

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def token_names(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its like, by name: the variables a chat template may use."""
    extra = config.get("extra_special_tokens")
    named = {**config, **(extra if isinstance(extra, dict) else {})}
    found = {name: _content(value) for name, value in named.items() if name.endswith("_token")}
    return {name: content for name, content in found.items() if content is not None}


def mark_special(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], folder: Path, vocab_size: int | None
) -> None:
    """Make special in `backend` what the config says is. A token that the vocabulary lacks is
    added where the model has a row for it, and is plain text where it has none."""
    known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for token in _wanted(config, known, folder):
        has_row = vocab_size is None or backend.get_vocab_size() < vocab_size
        if not _same(token, known.get(token.content)) and (
            has_row or backend.token_to_id(token.content) is not None
        ):
            backend.add_tokens([token])
            known[token.content] = token


def _wanted(
    config: Mapping[str, Any], known: Mapping[str, AddedToken], folder: Path
) -> Iterator[AddedToken]:
    """The config's tokens with its flags; a named one is special whatever they say."""
    stated = {token.content: token for token in _stated(config, folder)}
    yield from stated.values()
    for content in token_names(config).values():
        token = stated.get(content) or known.get(content)
        flags = _flags(token) if token is not None else {}
        yield AddedToken(content, **(flags | {"special": True}))
    others = config.get("extra_special_tokens") or config.get("additional_special_tokens")
    for value in others if isinstance(others, list) else ():
        found = _content(value)
        if found is not None and found not in stated and found not in known:
            yield AddedToken(found, special=True)


def _stated(config: Mapping[str, Any], folder: Path) -> list[AddedToken]:
    table = config.get("added_tokens_decoder") or {}
    try:
        entries = sorted(table.items(), key=lambda entry: int(entry[0]))
        return [AddedToken(**fields) for _, fields in entries]
    except (AttributeError, TypeError, ValueError):
        what = "expected tokens (content and flags) by token id"
        raise BadTokenizer(folder / CONFIG, "added_tokens_decoder", what) from None


def _content(value: Any) -> str | None:
    """A token is written as its text, or as an object with the text and flags."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _flags(token: AddedToken) -> dict[str, bool]:
    return {name: getattr(token, name) for name in _FLAGS}


def _same(token: AddedToken, other: AddedToken | None) -> bool:
    return other is not None and _flags(token) == _flags(other)
