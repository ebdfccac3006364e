"""What the clients of `benchmarks.soak` ask: answers that can be known beforehand, through every
API, and requests that have to be refused."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from benchmarks.http_exchange import Exchange

NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal")
THINGS = ("pens", "apples", "coins", "books", "stamps", "shells")
_CHAT, _TEXT, _MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
_TOO_LARGE = 200_000  # bytes


@dataclass(frozen=True, slots=True)
class Question:
    """Asked greedily, or with a seed, so that its answer alone is known."""

    path: str
    body: dict[str, Any]

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))


@dataclass(frozen=True, slots=True)
class Said:
    """An answer: its text, why it ended, and how many tokens it has."""

    text: str
    reason: str | None
    tokens: int


def questions(count: int) -> list[Question]:
    """All different, streamed or not, of 1 to 48 tokens."""
    rng = random.Random(0)
    return [_question(number, rng) for number in range(count)]


def _question(number: int, rng: random.Random) -> Question:
    who, what = rng.choice(NAMES), rng.choice(THINGS)
    words = f"{who} has {number} {what} and buys {rng.randint(2, 30)} more. How many are there?"
    body: dict[str, Any] = {"max_tokens": rng.choice((1, 8, 24, 48)), "temperature": 0}
    if rng.random() < 0.25:
        body |= {"temperature": 0.8, "seed": number}
    if rng.random() < 0.6:
        body["stream"] = True
    path = rng.choice((_CHAT, _CHAT, _TEXT, _MESSAGES))
    if path == _TEXT:
        body |= {"prompt": words, "ignore_eos": rng.random() < 0.5}
    else:
        body["messages"] = [{"role": "user", "content": words}]
    if path == _MESSAGES:  # which has no seed
        body = {name: value for name, value in body.items() if name != "seed"} | {"temperature": 0}
    elif body.get("stream"):
        body["stream_options"] = {"include_usage": True}
    return Question(path, body)


def said(question: Question, found: Exchange) -> Said | None:
    """None: there is no whole answer."""
    if found.status != 200 or not found.ended:
        return None
    try:
        values = [each.value() for each in found.events()] if question.streams else [found.json()]
    except ValueError:
        return None
    if question.path == _MESSAGES:
        return _said_in_messages(values)
    text, reason, tokens = "", None, 0
    for value in values:
        if "error" in value:
            return None
        for choice in value["choices"]:
            part = choice.get("delta") or choice.get("message") or choice
            text += part.get("content") or part.get("text") or ""
            reason = choice.get("finish_reason") or reason
        tokens = (value.get("usage") or {}).get("completion_tokens", tokens)
    return Said(text, reason, tokens)


def _said_in_messages(values: list[dict[str, Any]]) -> Said | None:
    text, reason, tokens = "", None, 0
    for value in values:
        if value["type"] == "error":
            return None
        for block in value.get("content", []):
            text += block.get("text", "")
        delta = value.get("delta", {})
        text += delta.get("text", "")
        reason = delta.get("stop_reason") or value.get("stop_reason") or reason
        tokens = (value.get("usage") or {}).get("output_tokens", tokens)
    return Said(text, reason, tokens)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Bytes that no answer may follow. `right` are the statuses that may; None: none comes."""

    data: bytes
    right: tuple[int | None, ...]


def refusals() -> list[Refusal]:
    large = {"messages": [{"role": "user", "content": "a" * _TOO_LARGE}]}
    wrong = {"messages": [{"role": "user", "content": "a"}], "temperature": "hot"}
    long = {"prompt": [5] * 5000, "max_tokens": 1}
    whole = _post(_CHAT, b'{"messages": [{"role": "user", "content": "a"}]}')
    return [
        Refusal(_post(_CHAT, json.dumps(large).encode()), (413,)),
        Refusal(_post(_CHAT, json.dumps(wrong).encode()), (400,)),
        Refusal(_post(_TEXT, json.dumps(long).encode()), (400,)),
        Refusal(_post(_CHAT, b'{"messages": ['), (400,)),
        Refusal(_post(_MESSAGES, b"\xff\xfe"), (400,)),
        Refusal(_post("/v1/nothing", b"{}"), (404,)),
        Refusal(whole[:-20], (None,)),  # the rest never comes
        Refusal(whole[:30], (None,)),
        Refusal(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", (400,)),  # TLS
        Refusal(b"GET\r\n\r\n", (400,)),
    ]


def _post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
