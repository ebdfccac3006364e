"""A GGUF file of random weights that servers are measured with: one file for all, with a vocabulary
of words, since a server writes text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from moesaic.lab.against.random_gguf import check_writable, write_random_gguf
from moesaic.models.configs.architecture import Architecture

_BYTES = 256
_NORMAL, _CONTROL = 1, 3  # llama.cpp's types of tokens
_PRE = "qwen2"
_TEMPLATE = "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + ' ' }}{% endfor %}"
_WORD = re.compile(r"w(\d+)")
NOT_WRITTEN = _BYTES + 1  # tokens at the vocabulary's end that the model never generates


def write_served_model(architecture: Architecture, expert_dtype: str, folder: Path) -> Path:
    check_writable(architecture, expert_dtype, folder)
    path, words = folder / "random.gguf", vocabulary(architecture.spec.vocab_size)

    def add_tokenizer(writer: Any) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_PRE)
        writer.add_token_list(words)
        writer.add_token_types([_NORMAL] * (len(words) - 1) + [_CONTROL])
        writer.add_token_merges([f"{words[-3]} {words[-2]}"])  # an empty list cannot be written
        writer.add_eos_token_id(len(words) - 1)
        writer.add_add_bos_token(False)
        writer.add_chat_template(_TEMPLATE)

    write_random_gguf(architecture, expert_dtype, path, add_tokenizer)
    _silence(path)
    return path


def vocabulary(size: int) -> list[str]:
    """Words, then the bytes of byte-level BPE, the last two of them joined, and an end. A word is a
    whole text, so that a server sends a piece for each."""
    words = [f"\u0120w{number}" for number in range(size - NOT_WRITTEN)]
    bytes_ = byte_tokens()
    words[-1] = bytes_[-2] + bytes_[-1]
    return [*words, *bytes_, "<|end|>"]


def byte_tokens() -> list[str]:
    """One printable character for each byte, as byte-level BPE writes them."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(_BYTES, 2 * _BYTES))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(_BYTES)]


def tokens_of(text: str) -> list[int]:
    """Of words."""
    return [int(number) for number in _WORD.findall(text)]


def _silence(path: Path) -> None:
    """Zeros in the rows of the last matrix for all that is no word: among so many random logits,
    the greatest is above 0."""
    from gguf import GGUFReader

    reader = GGUFReader(path, "r+")
    (output,) = [each for each in reader.tensors if each.name == "output.weight"]
    output.data[-NOT_WRITTEN - 1 :] = 0
    reader.data.flush()
