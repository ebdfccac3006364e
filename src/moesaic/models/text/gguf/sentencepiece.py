"""SentencePiece's BPE from tokens and scores, as a `tokenizers` object: Llama 2 and Mixtral.

There are no merges: any two neighbours whose text together is a token may become it, the token of
the highest score first. As merges, those are all ways to cut a token in two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import tokenizers
from tokenizers import decoders, models, normalizers

_SPACE = "▁"
# Token types; normal and user-defined ones are merged to.
_UNKNOWN, _UNUSED, _MERGEABLE = 2, 5, (1, 4)
_LONGEST = 256  # characters: a token has as many cuts, and real ones are far shorter
MAX_MERGES = 1 << 21  # Mixtral has 60 thousand; crafted tokens could have a hundred for each

_Cut = tuple[float, int, int, int, str, str]  # sorts as merges are preferred


def sentencepiece(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int], space_first: bool
) -> tokenizers.Tokenizer:
    """`space_first`: a text begins with a space that is not shown."""
    kinds = dict(zip(tokens, types, strict=True))
    vocabulary = {token: i for i, token in enumerate(tokens) if types[i] != _UNUSED}
    unknown = next((token for token, kind in kinds.items() if kind == _UNKNOWN), None)
    model = models.BPE(
        vocabulary,
        merges(tokens, scores, types),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = tokenizers.Tokenizer(model)
    spaces = normalizers.Replace(" ", _SPACE)
    first = [normalizers.Prepend(_SPACE)] if space_first else []
    backend.normalizer = normalizers.Sequence([*first, spaces])
    shown = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    stripped = [decoders.Strip(" ", 1, 0)] if space_first else []
    backend.decoder = decoders.Sequence([*shown, *stripped])
    return backend


def merges(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]
) -> list[tuple[str, str]]:
    """Best first; of one token's cuts, those into earlier tokens first. ValueError where there
    are more than any vocabulary has."""
    places = {
        token: place
        for place, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in _MERGEABLE and len(token) <= _LONGEST
    }
    found = list(islice(_cuts(places, scores), MAX_MERGES + 1))
    if len(found) > MAX_MERGES:
        raise ValueError(f"can be cut into each other in more than {MAX_MERGES} ways")
    return [(left, right) for *_, left, right in sorted(found)]


def _cuts(places: Mapping[str, int], scores: Sequence[float]) -> Iterator[_Cut]:
    for token, place in places.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in places and right in places:
                yield -scores[place], place, places[left], places[right], left, right
