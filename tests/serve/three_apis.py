"""The same question with the same tools, in the words of each chat API, and what each answers, in
one form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from agent_clients import LOOK, anthropic_client, openai_client
from scripted import NAME
from servers import SOON_S, events_of

QUESTION = [{"role": "user", "content": "What is in a.txt and b.txt?"}]


class Said(NamedTuple):
    text: str
    thought: str
    calls: list[tuple[str, str]]  # names, and arguments as they were written


class Api(NamedTuple):
    path: str
    asked: dict[str, Any]


def _tools(name: str, functions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if name == "chat":
        return [{"type": "function", "function": each} for each in functions]
    if name == "responses":
        return [{"type": "function", "strict": False, **each} for each in functions]
    return [{"name": each["name"], "input_schema": each["parameters"]} for each in functions]


def api(name: str, functions: list[dict[str, Any]] | None = None, **options: Any) -> Api:
    """`name`: chat, responses or messages."""
    asked: dict[str, Any] = {"model": NAME, "tools": _tools(name, functions or [LOOK]), **options}
    if name == "responses":
        return Api("/v1/responses", {"input": QUESTION, **asked})
    asked = {"messages": QUESTION, "max_tokens": 4000, **asked}
    return Api("/v1/chat/completions" if name == "chat" else "/v1/messages", asked)


NAMES = ("chat", "responses", "messages")


def published_stream(name: str, address: str, asked: dict[str, Any]) -> Iterator[Any]:
    """Events as the published client hands them out."""
    body = {**asked, "stream": True}
    if name == "chat":
        return iter(openai_client(address).chat.completions.create(**body))
    if name == "responses":
        return iter(openai_client(address).responses.create(**body))
    return iter(anthropic_client(address).messages.create(**body))


@contextmanager
def raw_stream(address: str, path: str, asked: dict[str, Any]) -> Iterator[HTTPResponse]:
    """Bytes as they come; the response's head has come when this returns."""
    connection = HTTPConnection(urlsplit(address).netloc, timeout=SOON_S)
    try:
        body = json.dumps({**asked, "stream": True})
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        yield connection.getresponse()
    finally:
        connection.close()


def whole(name: str, data: bytes) -> Said:
    """An answer that was not streamed."""
    body = json.loads(data)
    if name == "chat":
        message = body["choices"][0]["message"]
        functions = [each["function"] for each in message.get("tool_calls", [])]
        calls = [(each["name"], each["arguments"]) for each in functions]
        return Said(message["content"] or "", message.get("reasoning_content", ""), calls)
    if name == "responses":
        return _of_items(body["output"])
    return _of_blocks(body["content"])


def _of_items(items: list[dict[str, Any]]) -> Said:
    texts, thoughts, calls = [""], [""], []
    for item in items:
        if item["type"] == "function_call":
            calls.append((item["name"], item["arguments"]))
        else:
            kept = texts if item["type"] == "message" else thoughts
            kept += [part["text"] for part in item["content"]]
    return Said("".join(texts), "".join(thoughts), calls)


def _of_blocks(blocks: list[dict[str, Any]]) -> Said:
    text = "".join(each["text"] for each in blocks if each["type"] == "text")
    thought = "".join(each["thinking"] for each in blocks if each["type"] == "thinking")
    used = [each for each in blocks if each["type"] == "tool_use"]
    return Said(text, thought, [(each["name"], json.dumps(each["input"])) for each in used])


def streamed(name: str, data: bytes) -> Said:
    """The same of a stream, put together from its deltas."""
    events = [json.loads(each) for _, each in events_of(data) if each != "[DONE]"]
    collect = {"chat": _of_chunks, "responses": _of_deltas, "messages": _of_block_deltas}
    return collect[name](events)


def _of_chunks(events: list[Any]) -> Said:
    text, thought, calls = "", "", list[tuple[str, str]]()
    for chunk in events:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            text += delta.get("content") or ""
            thought += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", []):
                function = call["function"]
                if call["index"] == len(calls):
                    calls.append((function["name"], ""))
                name, arguments = calls[call["index"]]
                calls[call["index"]] = (name, arguments + function["arguments"])
    return Said(text, thought, calls)


def _of_deltas(events: list[Any]) -> Said:
    found: dict[int, list[str]] = {}
    kinds: dict[int, tuple[str, str]] = {}
    for event in events:
        number = event.get("output_index", -1)
        if event["type"] == "response.output_item.added":
            kinds[number] = (event["item"]["type"], event["item"].get("name", ""))
            found[number] = []
        elif event["type"].endswith(".delta"):
            found[number].append(event["delta"])
    return _of_parts([(*kinds[number], "".join(found[number])) for number in kinds])


def _of_block_deltas(events: list[Any]) -> Said:
    found: dict[int, list[str]] = {}
    kinds: dict[int, tuple[str, str]] = {}
    for event in events:
        if event["type"] == "content_block_start":
            block = event["content_block"]
            kinds[event["index"]] = (block["type"], block.get("name", ""))
            found[event["index"]] = []
        elif event["type"] == "content_block_delta":
            (piece,) = [value for key, value in event["delta"].items() if key != "type"]
            found[event["index"]].append(piece)
    return _of_parts([(*kinds[number], "".join(found[number])) for number in kinds])


def _of_parts(parts: list[tuple[str, str, str]]) -> Said:
    text = "".join(each for kind, _, each in parts if kind in ("message", "text"))
    thought = "".join(each for kind, _, each in parts if kind in ("reasoning", "thinking"))
    called = ("function_call", "tool_use")
    return Said(text, thought, [(name, each) for kind, name, each in parts if kind in called])
