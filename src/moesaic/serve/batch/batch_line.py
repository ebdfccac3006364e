"""One line of a batch: a request as the published Batch API has it.

A line that is no such request makes the whole file unusable. What is wrong with a body is found
when it is answered, and is that line's answer."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import msgspec

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
URLS = (CHAT, COMPLETIONS, RESPONSES)
_METHOD = "POST"
_MARK = b"\xef\xbb\xbf"  # that some editors put before a text
_FIRST_BYTES = 256  # of a prompt: lines that share them follow each other
_NONE = msgspec.Raw(b"")


class BatchLine(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw  # the text of a JSON object


class _Asked(msgspec.Struct):
    """The texts of a body that its prompt is made of, in the order in which most templates write
    them."""

    model: str | None = None
    tools: msgspec.Raw = _NONE
    instructions: msgspec.Raw = _NONE
    messages: msgspec.Raw = _NONE
    prompt: msgspec.Raw = _NONE
    input: msgspec.Raw = _NONE


class UnusableLine(Exception):
    """Its message says why."""


class PromptKey(NamedTuple):
    """Bodies whose texts begin alike have prompts that begin alike."""

    model: str | None
    text: bytes

    @property
    def group(self) -> int:
        return hash_of(self.text[:_FIRST_BYTES])


def decode_line(data: bytes) -> BatchLine:
    try:
        line = msgspec.json.decode(data.removeprefix(_MARK), type=BatchLine)
    except msgspec.ValidationError as error:
        raise UnusableLine(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableLine(f"it is not JSON: {error}") from None
    if not line.custom_id:
        raise UnusableLine("custom_id is empty")
    if line.method != _METHOD:
        raise UnusableLine(f"method is {line.method!r}; it must be {_METHOD!r}")
    if line.url not in URLS:
        raise UnusableLine(f"url is {line.url!r}; possible are {', '.join(URLS)}")
    if not bytes(line.body).startswith(b"{"):
        raise UnusableLine("body is no JSON object")
    return line


def prompt_key(line: BatchLine) -> PromptKey:
    try:
        asked = msgspec.json.decode(line.body, type=_Asked)
    except msgspec.MsgspecError:  # answered with what is wrong with it
        return PromptKey(None, bytes(line.body))
    texts = (asked.tools, asked.instructions, asked.messages, asked.prompt, asked.input)
    return PromptKey(asked.model, b"\n".join((line.url.encode(), *map(bytes, texts))))


def hash_of(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest())
