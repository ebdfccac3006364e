"""What a request's text begins with, as a chain of hashes: two requests have so many links in
common as their texts begin alike. Text is that of the request, before any chat template."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from moesaic.serve.client_noise import is_accounting
from moesaic.serve.responses.store import replica_of

PIECE_BYTES = 1024  # of one link; a message has at least one of its own
_HASH_BYTES = 8
_OF_RESPONSE = re.compile(r"/v1/responses/([^/]+)")
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_VOLATILE = frozenset({"role", "content", "cache_control", "status"})


class Route(NamedTuple):
    """Where a request wants to go."""

    links: tuple[bytes, ...] = ()
    replica: str | None = None  # the one that has stored what is asked for


def route_of(path: str, body: bytes) -> Route:
    """A body that is no request of an API has no wishes: a replica says what is wrong with it."""
    stored = _OF_RESPONSE.match(path)
    if stored is not None:
        return Route(replica=replica_of(stored[1]))
    try:
        asked = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return Route()
    if not isinstance(asked, dict):
        return Route()
    links = tuple(_chain(_texts(asked)))
    earlier = asked.get("previous_response_id")
    return Route(links, replica_of(earlier) if isinstance(earlier, str) else None)


def _chain(texts: Iterable[bytes]) -> Iterator[bytes]:
    link = b""
    for text in texts:
        for begin in range(0, max(1, len(text)), PIECE_BYTES):
            piece = text[begin : begin + PIECE_BYTES]
            link = blake2b(link + piece, digest_size=_HASH_BYTES).digest()
            yield link


def _texts(asked: dict[str, Any]) -> Iterator[bytes]:
    """In the order in which templates write them."""
    if asked.get("tools"):
        yield _plain(asked["tools"])
    for name in ("system", "instructions"):
        if asked.get(name):
            yield _content(asked[name])
    for name in ("messages", "input"):
        messages = asked.get(name)
        if isinstance(messages, list):
            yield from map(_message, messages)
        elif isinstance(messages, str):
            yield _message({"role": "user", "content": messages})
    if asked.get("prompt"):
        yield from _growing(asked["prompt"])


def _growing(prompt: object) -> Iterator[bytes]:
    """A longer text that begins alike has the same links, but for an unfinished last one."""
    text = prompt.encode(errors="replace") if isinstance(prompt, str) else _plain(prompt)
    whole = len(text) - len(text) % PIECE_BYTES
    yield text[:whole] if whole else text


def _message(message: object) -> bytes:
    if not isinstance(message, dict):
        return _plain(message)
    rest = {name: value for name, value in message.items() if name not in _VOLATILE}
    if rest.get("type") == "message":
        del rest["type"]
    role = str(message.get("role", ""))
    head = role.encode(errors="replace")
    return b"\0".join((head, _content(message.get("content")), _plain(rest) if rest else b""))


def _content(content: object) -> bytes:
    """The same for a text and for a list with that text; marks for caches move from message to
    message, and are left out."""
    if isinstance(content, str):
        return content.encode(errors="replace")
    if not isinstance(content, list):
        return b"" if content is None else _plain(content)
    return b"".join(_part(part) for part in content)


def _part(part: object) -> bytes:
    if not isinstance(part, dict):
        return _plain(part)
    if part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
        text = part["text"]
        return b"" if is_accounting(text) else text.encode(errors="replace")
    return _plain({name: value for name, value in part.items() if name != "cache_control"})


def _plain(value: object) -> bytes:
    return msgspec.json.encode(value)
