"""Requests to the server, each made from its number alone, with the statuses that are right for
it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from fuzzing.answer_schemas import any_schema
from fuzzing.json_values import anything, name, text
from fuzzing.mutations import DEEP, mutate_bytes, mutate_json
from fuzzing.request_bodies import BODIES, CHAT, COMPLETIONS, MESSAGES, RESPONSES, Body

JSON_TYPE = (b"content-type", b"application/json")
_WHATEVER = (200, 400, 404, 413, 429)
_TYPES = (
    b"text/plain",
    b"",
    b"multipart/form-data; boundary=x",
    b"application/json; charset=utf-16",
)
_METHODS = ("GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "BREW")
_READS = (
    "/v1/models",
    "/v1/models/moesaic-20m",
    "/health",
    "/props",
    "/slots",
    "/metrics",
)


@dataclass(frozen=True, slots=True)
class FuzzedRequest:
    """`pieces` are how the body arrives; `chunked`: without its length."""

    kind: str
    path: str
    pieces: tuple[bytes, ...]
    right: tuple[int, ...]  # statuses
    method: str = "POST"
    headers: tuple[tuple[bytes, bytes], ...] = (JSON_TYPE,)
    chunked: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


def request_of(number: int) -> FuzzedRequest:
    rng = random.Random(f"request {number}")
    kinds = list(_KINDS)
    made = rng.choices(kinds, weights=[_KINDS[each] for each in kinds])[0](rng)
    return _arriving(made, rng) if rng.random() < 0.2 else made


def _arriving(made: FuzzedRequest, rng: random.Random) -> FuzzedRequest:
    """In pieces, some of which are empty, or under another type, which says nothing here."""
    cuts = sorted(rng.randrange(len(made.body) + 1) for _ in range(rng.randrange(4)))
    ends = [0, *cuts, len(made.body)]
    pieces = tuple(made.body[a:b] for a, b in pairwise(ends))
    headers = made.headers
    if rng.random() < 0.5:
        headers = ((b"content-type", rng.choice(_TYPES)), *headers[1:])
    return replace(made, pieces=pieces, headers=headers, chunked=rng.random() < 0.5)


def _sent(kind: str, path: str, body: Any, right: Sequence[int]) -> FuzzedRequest:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return FuzzedRequest(kind, path, (data,), tuple(right))


def _body(rng: random.Random) -> Body:
    return rng.choice(BODIES)


def _one_right_field(rng: random.Random) -> FuzzedRequest:
    body = _body(rng)
    return _sent("right", body.path, body.with_fields(rng, 1), (200,))


def _right_fields(rng: random.Random) -> FuzzedRequest:
    body = _body(rng)
    return _sent("fields", body.path, body.with_fields(rng, rng.randint(2, 6)), (200, 400))


def _wrong_field(rng: random.Random) -> FuzzedRequest:
    body = _body(rng)
    return _sent("wrong", body.path, body.with_a_wrong_field(rng), (400,))


def _mutated(rng: random.Random) -> FuzzedRequest:
    body = _body(rng)
    return _sent("mutated", body.path, mutate_json(body.with_fields(rng, 4), rng), _WHATEVER)


def _flipped(rng: random.Random) -> FuzzedRequest:
    body = _body(rng)
    data = mutate_bytes(json.dumps(body.with_fields(rng, 3)).encode(), rng)
    return _sent("bytes", body.path, data, _WHATEVER)


def _no_object(rng: random.Random) -> FuzzedRequest:
    whole = json.dumps(anything(rng, 1)).encode()
    deep = rng.choice((b"[" * DEEP, b'{"a":' * DEEP, b"[" * DEEP + b"]" * DEEP))
    odd = (b"", b"null", b"\xff\xfe{\x00}\x00", rng.randbytes(rng.randint(1, 40)), whole, deep)
    data = rng.choice((*odd, b"a" * 300_000))
    right = (400,) if len(data) < 100_000 else (413,)
    return _sent("no object", _body(rng).path, data, right)


def _deep(rng: random.Random) -> FuzzedRequest:
    """Where any value may stand."""
    deep: Any = "a"
    for _ in range(rng.choice((10, 100, 900))):
        deep = [deep] if rng.random() < 0.5 else {"a": deep}
    said = {"role": "user", "content": "a"}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"a": deep}}}]
    places: list[tuple[Body, dict[str, Any]]] = [
        (CHAT, {"tools": tools}),
        (CHAT, {"chat_template_kwargs": {name(rng): deep}}),
        (CHAT, {"metadata": deep}),
        (
            RESPONSES,
            {"input": [{"type": "later", "a": deep}, said]},
        ),
        (MESSAGES, {"tools": [{"name": "f", "input_schema": {"a": deep}}]}),
    ]
    body, fields = rng.choice(places)
    return _sent("deep", body.path, body.least(rng) | fields, (200, 400))


def _schema(rng: random.Random) -> FuzzedRequest:
    """For the answer, or for the arguments of a call that is demanded."""
    schema = any_schema(rng)
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    named = {"type": "json_schema", "name": "a", "schema": schema}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    places: list[tuple[Body, dict[str, Any]]] = [
        (CHAT, {"response_format": form}),
        (COMPLETIONS, {"response_format": form}),
        (CHAT, {"tools": tools, "tool_choice": "required"}),
        (CHAT, {"tools": tools}),
        (RESPONSES, {"text": {"format": named}}),
    ]
    body, fields = rng.choice(places)
    return _sent("schema", body.path, body.least(rng) | fields, (200, 400))


def _template(rng: random.Random) -> FuzzedRequest:
    """Variables of the template, also those that it sets itself."""
    names = ("messages", "tools", "bos_token", "add_generation_prompt", "raise_exception", "loop")
    variables = {rng.choice((*names, text(rng))): anything(rng) for _ in range(2)}
    body = CHAT.least(rng) | {"chat_template_kwargs": variables}
    return _sent("template", CHAT.path, body, (200, 400))


def _calls(rng: random.Random) -> FuzzedRequest:
    """A conversation with calls and results, some of them out of place."""
    call = {"function": {"name": text(rng), "arguments": rng.choice(("{}", "{", "3", "", None))}}
    said = {"role": "assistant", "content": rng.choice((None, text(rng))), "tool_calls": [call]}
    result = {"role": "tool", "content": text(rng), "tool_call_id": rng.choice((None, "c"))}
    asked = {"role": "user", "content": text(rng)}
    talk = rng.choices((said, result, asked, {"role": "system", "content": "a"}), k=3)
    return _sent("calls", CHAT.path, CHAT.least(rng) | {"messages": [asked, *talk]}, (200, 400))


def _method(rng: random.Random) -> FuzzedRequest:
    path, method = rng.choice((*(each.path for each in BODIES), *_READS)), rng.choice(_METHODS)
    read = path in _READS and method in ("GET", "HEAD")
    right = (200,) if read or method == "OPTIONS" else (404, 405)
    return FuzzedRequest("method", path, (b"",), right, method)


def _path(rng: random.Random) -> FuzzedRequest:
    named = [f"{above}/{text(rng)}" for above in ("", "/v1/models")]
    usual = ("/v1", "//v1/models", "/v1/chat/completions/", "/v1/responses/resp_unknown")
    odd = (*usual, *named, "/v1/responses/" + "a" * 3000, "/../etc/passwd")
    method = rng.choice(("GET", "POST", "DELETE"))
    return FuzzedRequest("path", rng.choice(odd), (b"{}",), (307, 404, 405), method)


def _header(rng: random.Random) -> FuzzedRequest:
    body = _body(rng)
    odd = rng.choice(
        [
            (b"x-request-id", rng.randbytes(9).replace(b"\r", b"").replace(b"\n", b"")),
            (b"x-request-id", b"a" * 5000),
            (b"x-client", "ä🦀".encode() * 90),
            (b"authorization", b"Bearer \xff\xff"),
            (b"accept", b"text/html"),
            (b"content-encoding", b"identity"),
            (b"origin", b"null"),
            (b"expect", b"100-continue"),
        ]
    )
    right = (403,) if odd[0] == b"origin" else (200,)  # of no page that may ask
    made = _sent("header", body.path, body.least(rng), right)
    return replace(made, headers=(JSON_TYPE, odd))


_KINDS: dict[Callable[[random.Random], FuzzedRequest], int] = {
    _one_right_field: 14,
    _right_fields: 10,
    _wrong_field: 22,
    _mutated: 22,
    _flipped: 8,
    _no_object: 4,
    _deep: 2,
    _schema: 4,
    _template: 3,
    _calls: 4,
    _method: 3,
    _path: 2,
    _header: 2,
}
