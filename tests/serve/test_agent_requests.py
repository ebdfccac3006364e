"""Are requests as agents send them answered? They have the form and the fields of Codex, Claude
Code and opencode; instructions and descriptions are replaced by short texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from agent_clients import LOOK
from anthropic.types import RawMessageStreamEvent
from family_templates import answer
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from scripted import NAME, InstantEngine, ScriptedServer, scripted_server
from servers import events_of, posted

# One that takes most as it comes, and one that refuses most.
FAMILIES = ("qwen3", "mistral")

SCHEMA = LOOK["parameters"] | {"$schema": "https://json-schema.org/draft/2020-12/schema"}  # type: ignore[operator]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def scripted(family: str) -> Iterator[ScriptedServer]:
    with scripted_server(family, kind=InstantEngine) as made:
        yield made


def codex() -> dict[str, Any]:
    """A turn after two calls. Identifiers are new in every session and turn."""

    def text(role: str, *texts: str) -> dict[str, Any]:
        kind = "output_text" if role == "assistant" else "input_text"
        parts = [{"type": kind, "text": each} for each in texts]
        return {"type": "message", "id": "msg_1", "role": role, "content": parts}

    def call(number: int) -> dict[str, Any]:
        call = {"type": "function_call", "id": f"fc_{number}", "status": "completed"}
        arguments = json.dumps({"path": f"{number}.txt"})
        return call | {"name": "look", "arguments": arguments, "call_id": f"call_{number:024}"}

    def output(number: int, content: Any) -> dict[str, Any]:
        made = {"type": "function_call_output", "id": f"fco_{number}"}
        return made | {"call_id": f"call_{number:024}", "output": content}

    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    thought: dict[str, Any] = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "encrypted_content": None,
    }
    return {
        "model": NAME,
        "stream": True,
        "input": [
            text("developer", "first-rule"),
            text("developer", "second-rule", "third-rule"),
            text("user", "where-am-i"),
            text("user", "the-question"),
            thought | {"content": [{"type": "reasoning_text", "text": "a thought"}]},
            text("assistant", "i-look") | {"status": "completed"},
            call(1),
            call(2),
            output(1, "result-1"),
            output(2, [image, {"type": "input_text", "text": "result-2"}]),
            {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        ],
        "tools": [
            {"type": "function", "strict": False, **LOOK},
            {"type": "namespace", "name": "others", "tools": [{"type": "function", "name": "x"}]},
            {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark"}},
            {"type": "web_search", "external_web_access": True},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "a-thread",
        "service_tier": "auto",
        "client_metadata": {"turn_id": "a-turn"},
        "text": {"verbosity": "low"},
    }


def claude_code() -> dict[str, Any]:
    cached = {"cache_control": {"type": "ephemeral"}}

    def text(words: str, **others: Any) -> dict[str, Any]:
        return {"type": "text", "text": words, **others}

    def use(number: int) -> dict[str, Any]:
        made = {"type": "tool_use", "id": f"toolu_{number:024}", "name": "look"}
        return made | {"input": {"path": f"{number}.txt"}}

    def result(number: int, content: Any) -> dict[str, Any]:
        made = {"type": "tool_result", "tool_use_id": f"toolu_{number:024}", "is_error": False}
        return made | {"content": content}

    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A"}}
    return {
        "model": NAME,
        "max_tokens": 32_000,
        "stream": True,
        "system": [
            text("x-anthropic-billing-header: cc_version=2.1.197.db9; cc_entrypoint=cli;"),
            text("first-rule", **cached),
            text("\nsecond-rule", **cached),
        ],
        "messages": [
            {"role": "user", "content": [text("where-am-i\n\n"), text("the-question")]},
            {"role": "system", "content": "third-rule"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "a thought", "signature": ""},
                    {"type": "redacted_thinking", "data": "AAAA"},
                    text("i-look"),
                    use(1),
                    use(2),
                ],
            },
            {
                "role": "user",
                "content": [
                    result(1, "result-1"),
                    result(2, [text("result-2"), image]),
                    text("a-reminder", **cached),
                ],
            },
        ],
        "tools": [
            {"name": "look", "description": "Look.", "input_schema": SCHEMA, **cached},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "metadata": {"user_id": json.dumps({"device_id": "d", "session_id": "s"})},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "service_tier": "auto",
    }


def opencode() -> dict[str, Any]:
    def call(number: int) -> dict[str, Any]:
        function = {"name": "look", "arguments": json.dumps({"path": f"{number}.txt"})}
        return {"id": f"call_{number:024}", "type": "function", "function": function}

    def result(number: int) -> dict[str, Any]:
        made = {"role": "tool", "tool_call_id": f"call_{number:024}"}
        return made | {"content": f"result-{number}"}

    function = {"name": "look", "description": "Look.", "parameters": SCHEMA}
    said = {"role": "assistant", "content": "i-look", "reasoning_content": "a thought"}
    return {
        "model": NAME,
        "max_tokens": 8192,
        "messages": [
            {"role": "system", "content": "first-rule"},
            {"role": "user", "content": "where-am-i"},
            {"role": "user", "content": "the-question"},
            said | {"tool_calls": [call(1), call(2)]},
            result(1),
            result(2),
        ],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


REQUESTS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "codex": ("/v1/responses", codex(), ResponseStreamEvent),
    "claude code": ("/v1/messages?beta=true", claude_code(), RawMessageStreamEvent),
    "opencode": ("/v1/chat/completions", opencode(), ChatCompletionChunk),
}
CALLS = {"codex": "function_call", "claude code": "tool_use", "opencode": "tool_calls"}
HEADERS = {
    "anthropic-beta": "interleaved-thinking-2025-05-14,mid-conversation-system-2026-04-07",
    "anthropic-version": "2023-06-01",
    "authorization": "Bearer unused",
    "session-id": "a-session",
}


@pytest.mark.parametrize("agent", REQUESTS)
def test_a_turn_is_answered(scripted: ScriptedServer, family: str, agent: str) -> None:
    path, body, kind = REQUESTS[agent]
    scripted.forget()
    scripted.answer(answer(family, "Now.", "", ("look", {"path": "3.txt"})))
    events = events_of(posted(f"{scripted.address}{path}", body, HEADERS))
    adapter = TypeAdapter[Any](kind)
    for _, data in events:
        if data != "[DONE]":
            adapter.validate_json(data, strict=True)
    assert any(f'"{CALLS[agent]}"' in data for _, data in events)
    (exchange,) = scripted.engine.exchanges
    prompt = scripted.tokenizer.decode(exchange.prompt, skip_special=False)
    order = ["first-rule", "where-am-i", "the-question", "i-look", "1.txt", "2.txt"]
    places = [prompt.find(each) for each in [*order, "result-1", "result-2"]]
    assert places == sorted(places)
    assert places[0] >= 0
    assert "billing" not in prompt
    left_out = {"codex": "input_image was left out", "claude code": "image was left out"}
    assert left_out.get(agent, "") in prompt


def test_accounting_in_another_api_is_left_out(scripted: ScriptedServer) -> None:
    """As proxies translate it."""
    scripted.forget()
    rules = "x-anthropic-billing-header: cc_version=1; cch=00001;\n\nfirst-rule"
    messages = [{"role": "system", "content": rules}, {"role": "user", "content": "Hi"}]
    scripted.engine.script = lambda prompt: "Done."
    posted(f"{scripted.address}/v1/chat/completions", {"model": NAME, "messages": messages})
    (exchange,) = scripted.engine.exchanges
    prompt = scripted.tokenizer.decode(exchange.prompt, skip_special=False)
    assert "first-rule" in prompt
    assert "cch=" not in prompt


def test_items_of_stored_responses_are_found_by_name(scripted: ScriptedServer, family: str) -> None:
    scripted.forget()
    scripted.engine.script = lambda prompt: answer(family, "Now.", "the-answer")
    asked: dict[str, Any] = {"model": NAME, "input": "Hi"}
    first = json.loads(posted(f"{scripted.address}/v1/responses", asked))
    names = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    again = [{"role": "user", "content": "Hi"}, *names, {"role": "user", "content": "More"}]
    posted(f"{scripted.address}/v1/responses", asked | {"input": again})
    prompt = scripted.tokenizer.decode(scripted.engine.exchanges[-1].prompt)
    assert "the-answer" in prompt
