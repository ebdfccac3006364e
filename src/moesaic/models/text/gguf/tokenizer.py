"""The tokenizer in a GGUF file's metadata: byte-level BPE ("gpt2") or SentencePiece ("llama") as a
`tokenizers` object, the tokens that have a name, those that end a text, and the chat template.

Other kinds are refused: a tokenizer.json beside the file is read instead of metadata that cannot
be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from moesaic.core.errors import BadTokenizer
from moesaic.model_info.gguf.files import read_gguf
from moesaic.models.text.gguf.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer

_MODEL, _PRE = "tokenizer.ggml.model", "tokenizer.ggml.pre"
_TOKENS, _TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_MERGES, _TEMPLATE = "tokenizer.ggml.merges", "tokenizer.chat_template"
_SCORES = "tokenizer.ggml.scores"
_BYTE_LEVEL, _SENTENCEPIECE = "gpt2", "llama"
_ABSENT = (None, "none", "no_vocab")
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_ENDS = ("eos", "eot", "eom")
_NAMES = ("bos", "eos", "unk", "sep", "pad")
# End a text in the models that have them as control tokens, whatever `eos_token_id` says.
_END_TOKENS = (
    *("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"),
    *("<|return|>", "<|call|>"),  # gpt-oss
)


class GgufTokenizer(NamedTuple):
    backend: tokenizers.Tokenizer
    names: dict[str, str]  # bos_token and its like: what a chat template may use
    bos_id: int | None
    eos_ids: frozenset[int]
    template: str | None


def states_tokenizer(path: Path) -> bool:
    return read_gguf(path).metadata.get(_MODEL) not in _ABSENT


def unsupported_tokenizer(path: Path) -> BadTokenizer | None:
    """Why the metadata cannot be used, where it is of a kind we do not read."""
    return _Metadata(path).unsupported()


def read_tokenizer(path: Path) -> GgufTokenizer:
    found = _Metadata(path)
    refused = found.unsupported()
    if refused is not None:
        raise refused
    tokens, types = found.tokens()
    ids = {name: found.token_id(name, len(tokens)) for name in (*_NAMES, *_ENDS)}
    named = {f"{name}_token": tokens[i] for name in _NAMES if (i := ids[name]) is not None}
    if found.metadata[_MODEL] == _BYTE_LEVEL:
        pre = PRE_TOKENIZERS[found.metadata[_PRE]]
        backend, adds_bos = _byte_level(found, pre, tokens, types), pre.adds_bos
    else:
        backend, adds_bos = _sentencepiece(found, tokens, types), True
    _add_tokens(backend, tokens, types)
    _surround(found, adds_bos, backend, ids)
    ends = {i for name in _ENDS if (i := ids[name]) is not None}
    ends |= {i for i, token in enumerate(tokens) if types[i] == _CONTROL and token in _END_TOKENS}
    return GgufTokenizer(backend, named, ids["bos"], frozenset(ends), found.template())


class _Metadata:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: Mapping[str, Any] = read_gguf(path).metadata

    def unsupported(self) -> BadTokenizer | None:
        kind, pre = self.metadata.get(_MODEL), self.metadata.get(_PRE)
        beside = "put the model's tokenizer.json beside the file"
        if kind == _SENTENCEPIECE:
            return None
        if kind != _BYTE_LEVEL:
            what = f"{kind!r} cannot be read, only {_BYTE_LEVEL!r} and {_SENTENCEPIECE!r}: {beside}"
            return BadTokenizer(self.path, _MODEL, what)
        if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
            known = ", ".join(PRE_TOKENIZERS)
            stated = "is missing" if pre is None else f"{pre!r} is not known"
            return BadTokenizer(self.path, _PRE, f"{stated} (known: {known}): {beside}")
        return None

    def tokens(self) -> tuple[list[str], list[int]]:
        tokens = self._texts(_TOKENS)
        types = self.metadata.get(_TYPES, [1] * len(tokens))
        if not isinstance(types, list) or len(types) != len(tokens):
            self.fail(_TYPES, f"expected a list of {len(tokens)} numbers, one for each token")
        used = [token for token, kind in zip(tokens, types, strict=True) if kind != _UNUSED]
        if len(set(used)) != len(used):
            self.fail(_TOKENS, "expected every token once")
        return tokens, types

    def merges(self) -> list[tuple[str, str]]:
        found = []
        for merge in self._texts(_MERGES):
            first, _, second = merge.partition(" ")
            if not first or not second or " " in second:
                self.fail(_MERGES, f"expected two tokens and a space between them, not {merge!r}")
            found.append((first, second))
        return found

    def scores(self, count: int) -> list[float]:
        value = self.metadata.get(_SCORES)
        if (
            not isinstance(value, list)
            or len(value) != count
            or not all(isinstance(item, float) for item in value)
        ):
            self.fail(_SCORES, f"expected a list of {count} numbers, one for each token")
        return value

    def token_id(self, name: str, count: int) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < count:
            self.fail(key, f"expected one of the {count} tokens, not {value!r}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        key = f"tokenizer.ggml.{name}"
        value = self.metadata.get(key, default)
        if not isinstance(value, bool):
            self.fail(key, f"expected true or false, not {value!r}")
        return value

    def template(self) -> str | None:
        value = self.metadata.get(_TEMPLATE)
        if value is not None and not isinstance(value, str):
            self.fail(_TEMPLATE, "expected a template")
        return value or None

    def fail(self, key: str, what: str) -> NoReturn:
        raise BadTokenizer(self.path, key, what)

    def _texts(self, key: str) -> list[str]:
        value = self.metadata.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(key, "expected a list of texts")
        return value


def _byte_level(
    found: _Metadata, pre: PreTokenizer, tokens: list[str], types: list[int]
) -> tokenizers.Tokenizer:
    """Unused rows of the model have made-up tokens in GGUF and none in the published file."""
    if found.flag("add_space_prefix", default=False):
        found.fail("tokenizer.ggml.add_space_prefix", "expected false with byte-level BPE")
    vocabulary = {token: i for i, token in enumerate(tokens) if types[i] != _UNUSED}
    merges = found.merges()
    try:
        model = models.BPE(vocabulary, merges, ignore_merges=pre.whole_words)
    except Exception as error:  # the binding raises nothing more precise
        found.fail(_MERGES, f"do not fit the tokens: {error}")
    backend = tokenizers.Tokenizer(model)
    normalizer = pre.normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre.splitter()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(found: _Metadata, tokens: list[str], types: list[int]) -> tokenizers.Tokenizer:
    space_first = found.flag("add_space_prefix", default=True)
    scores = found.scores(len(tokens))
    try:
        return sentencepiece(tokens, scores, types, space_first)
    except ValueError as error:
        found.fail(_TOKENS, str(error))


def _add_tokens(backend: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Tokens that are found in a text before anything is merged."""
    added = [
        AddedToken(token, normalized=False, special=types[i] == _CONTROL)
        for i, token in enumerate(tokens)
        if types[i] in (_CONTROL, _USER_DEFINED)
    ]
    backend.add_tokens(added)


def _surround(
    found: _Metadata,
    adds_bos: bool,
    backend: tokenizers.Tokenizer,
    ids: Mapping[str, int | None],
) -> None:
    """The tokens a text begins and ends with; `adds_bos` where the file does not say."""
    first = ids["bos"] if found.flag("add_bos_token", adds_bos) else None
    last = ids["eos"] if found.flag("add_eos_token", default=False) else None
    if first is None and last is None:
        return
    around = [(f"t{i}", i) for i in (first, last) if i is not None]
    pieces = [] if first is None else [f"t{first}:0"]
    pieces.append("$A:0")
    pieces += [] if last is None else [f"t{last}:0"]
    backend.post_processor = processors.TemplateProcessing(
        single=pieces, special_tokens=sorted(dict(around).items())
    )


# SentencePiece's BPE from tokens and scores, as a `tokenizers` object: Llama 2 and Mixtral. There
# are no merges: any two neighbours whose text together is a token may become it, the token of the
# highest score first. As merges, those are all ways to cut a token in two.

_SPACE = "▁"
# Token types; normal and user-defined ones are merged to.
_UNKNOWN, _UNUSED_TOKEN, _MERGEABLE = 2, 5, (1, 4)
_LONGEST = 256  # characters: a token has as many cuts, and real ones are far shorter
MAX_MERGES = 1 << 21  # Mixtral has 60 thousand; crafted tokens could have a hundred for each

_Cut = tuple[float, int, int, int, str, str]  # sorts as merges are preferred


def sentencepiece(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int], space_first: bool
) -> tokenizers.Tokenizer:
    """`space_first`: a text begins with a space that is not shown."""
    kinds = dict(zip(tokens, types, strict=True))
    vocabulary = {token: i for i, token in enumerate(tokens) if types[i] != _UNUSED_TOKEN}
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
