"""How many tokens a text has at least, without making them: a text that is certainly too long need
not be tokenized."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import tokenizers
from tokenizers.pre_tokenizers import ByteLevel

_NFC_SHRINKS = 3  # three characters of three bytes each become one, in Hangul
_KEEP_ALL = ("ByteLevel", "Digits", "Metaspace")  # ways to split that drop nothing of a text


def most_bytes(backend: tokenizers.Tokenizer) -> int | None:
    """Of a text in one token; None where a token may stand for any number of them."""
    steps = [*_parts(backend.normalizer), *_parts(backend.pre_tokenizer)]
    added = backend.get_added_tokens_decoder().values()
    if not all(map(_keeps, steps)) or any(each.lstrip or each.rstrip for each in added):
        return None
    vocabulary = backend.get_vocab(with_added_tokens=False)
    kinds = [each["type"] for each in steps]
    if not isinstance(backend.model, tokenizers.models.BPE):
        return None
    if "ByteLevel" in kinds and vocabulary.keys() >= set(ByteLevel.alphabet()):
        lengths = [len(each) for each in vocabulary]  # a character of a token is a byte of the text
    elif backend.model.byte_fallback and vocabulary.keys() >= {f"<0x{n:02X}>" for n in range(256)}:
        lengths = [len(each.encode()) for each in vocabulary]
    else:
        return None  # unknown characters in a row may be one token, or none
    longest = max(*lengths, 1, *(len(each.content.encode()) for each in added))
    return longest * (_NFC_SHRINKS if "NFC" in kinds else 1)


def _parts(component: Any) -> Iterator[dict[str, Any]]:
    """Its steps, as the file states them; the library shows them in the form it pickles."""
    if component is not None:
        yield from _flat(json.loads(component.__getstate__()))


def _flat(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    inner = step.get("normalizers") or step.get("pretokenizers")
    if step["type"] != "Sequence":
        yield step
    for each in inner or ():
        yield from _flat(each)


def _keeps(step: dict[str, Any]) -> bool:
    """Whether nothing of a text is lost by this step, but for the shorter forms of NFC."""
    match step:
        case {"type": "NFC" | "Prepend"}:
            return True
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return len(new.encode()) >= len(old.encode())
        case {"type": "Split", "behavior": behavior}:
            return bool(behavior != "Removed")
        case {"type": str(kind)}:
            return kind in _KEEP_ALL
    return False
