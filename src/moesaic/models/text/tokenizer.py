"""Text to tokens and back, and conversations to prompts: what the stock tokenizer of the same
directory makes of them.

Everything is in the files: tokenizer.json says how text is split and which tokens are put around
it, chat templates write their own. `add_bos_token` and `add_eos_token` of older configs change
nothing, as in the stock tokenizer, which ignores them where there is a tokenizer.json.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from moesaic.core.errors import BadTokenizer, ImpossibleSetting, MoesaicError
from moesaic.core.files import has_regular_file
from moesaic.core.parsing import read_bounded, short
from moesaic.model_info.gguf.files import is_gguf
from moesaic.models.text.chat_messages import Messages, check_messages, refuse_dropped
from moesaic.models.text.chat_template import ChatTemplate
from moesaic.models.text.gguf.tokenizer import (
    read_tokenizer,
    states_tokenizer,
    unsupported_tokenizer,
)
from moesaic.models.text.special_tokens import mark_special, token_names
from moesaic.models.text.token_lengths import most_bytes
from moesaic.models.text.tokenizer_files import read_config, read_eos_ids, read_template

_FILE = "tokenizer.json"
_MAX_BYTES = 256 << 20


def has_tokenizer(folder: str | os.PathLike[str]) -> bool:
    path = Path(folder)
    if is_gguf(path):
        return states_tokenizer(path) or has_tokenizer(path.parent)
    return has_regular_file(path / _FILE, BadTokenizer)


class Tokenizer:
    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        folder: Path,
        vocabulary: int,
        bos_id: int | None,
        eos_ids: frozenset[int],
        template: ChatTemplate | None,
    ) -> None:
        self.vocabulary = vocabulary  # one more than the largest id
        self.bos_id = bos_id
        self.eos_ids = eos_ids  # a text ends with any of these
        self._backend = backend
        self._folder = folder
        self._file = folder / _FILE if folder.is_dir() else folder
        self._template = template
        added = backend.get_added_tokens_decoder()
        self.special = frozenset(token_id for token_id, token in added.items() if token.special)
        # Tokens added to the vocabulary, special or not, by their text.
        self.added = {token.content: token_id for token_id, token in added.items()}
        self._spells_bytes = _spells_bytes(backend)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], vocab_size: int | None = None) -> Tokenizer:
        """The tokenizer of a model directory or of a GGUF file; it must not know more than
        `vocab_size` tokens."""
        path = Path(folder)
        with reported(path if path.is_file() else path / _FILE, "be used"):
            return cls._open(path, vocab_size)

    @classmethod
    def _open(cls, path: Path, vocab_size: int | None) -> Tokenizer:
        if is_gguf(path):
            if unsupported_tokenizer(path) is None or not has_tokenizer(path.parent):
                return cls._from_gguf(path, vocab_size)
            path = path.parent
        backend = _read_backend(path)
        config = read_config(path)
        mark_special(backend, config, path, vocab_size)
        names = token_names(config)
        ids = {name: backend.token_to_id(content) for name, content in names.items()}
        template = read_template(path, config)
        return cls(
            backend,
            path,
            vocabulary=count_ids(backend, path / _FILE, vocab_size),
            bos_id=ids.get("bos_token"),
            eos_ids=read_eos_ids(path, ids.get("eos_token")),
            template=None if template is None else ChatTemplate(*template, names),
        )

    @classmethod
    def _from_gguf(cls, path: Path, vocab_size: int | None) -> Tokenizer:
        found = read_tokenizer(path)
        template = found.template
        return cls(
            found.backend,
            path,
            vocabulary=count_ids(found.backend, path, vocab_size),
            bos_id=found.bos_id,
            eos_ids=found.eos_ids,
            template=None if template is None else ChatTemplate(template, path, found.names),
        )

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str, special: bool = True) -> list[int]:
        """`special`: with the tokens around it that the tokenizer wants, BOS for example."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _not_text(text, error.start) from None
        with reported(self._file, "encode this text"):
            return self._backend.encode(text, add_special_tokens=special).ids

    def least_tokens(self, text: str) -> int:
        """So many tokens the text has in any case, or more."""
        return 0 if self._most_bytes is None else -(-len(text.encode()) // self._most_bytes)

    @cached_property
    def _most_bytes(self) -> int | None:
        return most_bytes(self._backend)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Ids past the vocabulary, which padded models may choose, have no text."""
        with reported(self._file, "decode these tokens"):
            return self._backend.decode(list(ids), skip_special_tokens=skip_special)

    def token_text(self, token_id: int) -> str:
        """The text of one token as it stands among others: decoders may drop the first space of a
        text. A part of a character is U+FFFD; special tokens are written by their names."""
        before = self.encode("a", special=False)
        text = self.decode([*before, token_id], skip_special=False)
        return text.removeprefix(self.decode(before, skip_special=False))

    @property
    def template_source(self) -> str | None:
        """The model's chat template, as it is written."""
        return None if self._template is None else self._template.source

    def names_in_template(self, word: str) -> bool:
        """Whether the model's chat template has this word, a role for example."""
        return self._template is not None and self._template.has_word(word)

    def render_chat(
        self,
        messages: Messages,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as the model's chat template writes it, up to where it answers.
        `variables` are further ones of the template, `tools` for example."""
        if self._template is None:
            raise ImpossibleSetting(
                f"the model in {str(self._folder)!r} has no chat template, so a conversation "
                "cannot be put to it: give it plain text with `moesaic run -p`, or add a "
                "chat_template.jinja to its directory."
            )
        check_messages(messages)
        return self._template.render(messages, add_generation_prompt, variables)

    def encode_chat(
        self, messages: Messages, variables: Mapping[str, Any] | None = None
    ) -> list[int]:
        """No tokens are put around it: a template writes BOS itself where the model wants it."""
        return self.encode(self.chat_text(messages, variables), special=False)

    def chat_text(self, messages: Messages, variables: Mapping[str, Any] | None = None) -> str:
        """The prompt as text. A message that the template drops is refused."""

        def render(several: Messages) -> str:
            return self.render_chat(several, variables=variables)

        text = render(messages)
        refuse_dropped(render, messages, text)
        return text

    def apply_chat_template(
        self, messages: Messages, *, tokenize: bool = True, add_generation_prompt: bool = True
    ) -> list[int] | str:
        """A conversation as token ids, or as text; named as in transformers."""
        text = self.render_chat(messages, add_generation_prompt)
        return self.encode(text, special=False) if tokenize else text

    def definition(self) -> str:
        """The tokenizer.json, with what other files of the directory add to it."""
        with reported(self._file, "be written"):
            return self._backend.to_str()

    def is_text(self, token_id: int, skip_special: bool = True) -> bool:
        """Whether decoding looks at this token at all."""
        if skip_special and token_id in self.special:
            return False
        return self._backend.id_to_token(token_id) is not None

    def is_byte(self, token_id: int) -> bool:
        """Whether this token is one byte of a character that is spelled out ("byte fallback")."""
        if not self._spells_bytes:
            return False
        token = self._backend.id_to_token(token_id) or ""
        return len(token) == len("<0x41>") and token.startswith("<0x") and token.endswith(">")


def _not_text(text: str, place: int) -> ImpossibleSetting:
    """Python keeps bytes that are not UTF-8, from a pipe or an argument, as U+DC80 to U+DCFF."""
    code = ord(text[place])
    if not 0xDC80 <= code <= 0xDCFF:
        what = f"character {place} is half of a surrogate pair"
        return ImpossibleSetting(f"the text is not valid Unicode: {what}; remove it.")
    before = text[max(0, place - 20) : place].encode(errors="replace").decode()
    return ImpossibleSetting(
        f"the text is not valid UTF-8: byte 0x{code - 0xDC00:02x} after {before!r}; convert it, "
        "for example with `iconv -f LATIN1 -t UTF-8`"
    )


def _read_backend(folder: Path) -> tokenizers.Tokenizer:
    file = folder / _FILE
    if not has_regular_file(file, BadTokenizer):
        other = sorted(path.name for path in folder.glob("*.model")) if folder.is_dir() else []
        found = f"; found {other[0]}, which must be converted first" if other else ""
        raise BadTokenizer(folder, "file", f"expected {_FILE}{found}")
    with reported(file, "be read"):
        content = read_bounded(file, BadTokenizer, _MAX_BYTES)
        backend = tokenizers.Tokenizer.from_buffer(content)
        check_added_ids(backend, content, file)
    # A file may ask for a fixed length, which suits training; a prompt is as long as it is.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _spells_bytes(backend: tokenizers.Tokenizer) -> bool:
    """Asked of the decoder itself: it may be one of several in a sequence."""
    decoder = backend.decoder
    return decoder is not None and decoder.decode(["<0x41>"]) == "A"


# Token ids as a tokenizer's file states them: each belongs to one token, and none is beyond the
# model's vocabulary. The `tokenizers` library accepts files that say otherwise and then uses
# other ids than the file, or decodes to either token.

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


# What the `tokenizers` library raises on files that are JSON but make no tokenizer: its own
# exceptions, and panics of its Rust code, which no `except Exception` catches.

_PANIC = "PanicException"  # a BaseException that pyo3 makes; it can be imported from nowhere


@contextmanager
def reported(file: Path, doing: str) -> Iterator[None]:
    """Faults of the library become BadTokenizer; ours, interrupts and exits pass."""
    try:
        yield
    except (MoesaicError, OSError, AssertionError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        what = str(error) or type(error).__name__
        raise BadTokenizer(file, "file", f"cannot {doing}: {what}; fetch it again") from None
