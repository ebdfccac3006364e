"""Are responses and events of streams what the published clients' types say, strictly, and do the
events of a stream make the whole answer together?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from agent_clients import LOOK, anthropic_client, openai_client
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from family_templates import answer
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter
from scripted import NAME, InstantEngine, ScriptedServer, scripted_server
from servers import events_of, posted

FAMILY = "qwen3"
QUESTION = [{"role": "user", "content": "What is in a.txt and b.txt?"}]
CALLS = [("look", {"path": "a.txt"}), ("look", {"path": "b.txt"})]
# What the model writes, and what of it is text, thought and calls.
ANSWERS = {
    "text": (answer(FAMILY, "Now.", "Nothing."), "Nothing.", "Now.", []),
    "a call": (answer(FAMILY, "Now.", "", CALLS[0]), "", "Now.", CALLS[:1]),
    "parallel calls": (answer(FAMILY, "Now.", "I look.", *CALLS), "I look.", "Now.", CALLS),
    "no thought": ("Nothing.", "Nothing.", "", []),
    "nothing": ("", "", "", []),
    "a thought alone": ("<think>\nNow.\n</think>\n\n", "", "Now.", []),
    "a call in words": ('<tool_call>\n{"name": }', '<tool_call>\n{"name": }', "", []),
}
# Fields that are not of the published API, and that clients of other servers know.
OWN = {
    ("ChatCompletionMessage", "reasoning_content"),
    ("ChoiceDelta", "reasoning_content"),
    ("Model", "max_model_len"),
    ("Response", "store"),  # which the published API sends, too
}

_CHAT_TOOLS = [{"type": "function", "function": LOOK}]
_RESPONSES_TOOLS = [{"type": "function", "strict": False, **LOOK}]
_MESSAGES_TOOLS = [
    {"name": "look", "description": LOOK["description"], "input_schema": LOOK["parameters"]}
]


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedServer]:
    with scripted_server(FAMILY, kind=InstantEngine) as made:
        yield made


@pytest.fixture(params=ANSWERS)
def expected(request: pytest.FixtureRequest, scripted: ScriptedServer) -> Any:
    """The model gives this answer to all requests."""
    text, *made = ANSWERS[request.param]
    scripted.engine.script = lambda prompt: text
    return made


def strictly(kind: Any, data: str | bytes) -> Any:
    """The value as its type says, without conversions and without fields that the type has not."""
    made = _adapter(kind).validate_json(data, strict=True)
    found = {
        (type(each).__name__, name) for each in models_in(made) for name in each.model_extra or ()
    }
    assert found <= OWN, f"fields that are not published: {found - OWN}"
    return made


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def models_in(value: object) -> Iterator[BaseModel]:
    if isinstance(value, BaseModel):
        yield value
        for name in value.model_fields_set:
            yield from models_in(getattr(value, name))
    elif isinstance(value, list):
        for each in value:
            yield from models_in(each)


def post(scripted: ScriptedServer, path: str, body: dict[str, Any]) -> bytes:
    return posted(f"{scripted.address}{path}", body)


def called(calls: Any) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in calls]


def test_chat_completions(scripted: ScriptedServer, expected: Any) -> None:
    text, thought, calls = expected
    asked = {"model": NAME, "messages": QUESTION, "tools": _CHAT_TOOLS, "n": 2}
    asked |= {"logprobs": True, "top_logprobs": 2}
    whole = strictly(ChatCompletion, post(scripted, "/v1/chat/completions", asked))
    assert [choice.index for choice in whole.choices] == [0, 1]
    for choice in whole.choices:
        assert choice.finish_reason == ("tool_calls" if calls else "stop")
        assert (choice.message.content or "", thought_of(choice.message)) == (text, thought)
        functions = [each.function for each in choice.message.tool_calls or []]
        assert called((each.name, each.arguments) for each in functions) == calls
    in_stream = asked | {"stream": True, "stream_options": {"include_usage": True}}
    events = events_of(post(scripted, "/v1/chat/completions", in_stream))
    assert events.pop() == ("", "[DONE]")
    chunks = [strictly(ChatCompletionChunk, data) for _, data in events]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    with openai_client(scripted.address).chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    for made, choice in zip(final.choices, whole.choices, strict=True):
        assert (made.message.content or "") == (choice.message.content or "")
        assert made.finish_reason == choice.finish_reason
        functions = [each.function for each in made.message.tool_calls or []]
        assert called((each.name, each.arguments) for each in functions) == calls
        tokens = [each.token for each in choice.logprobs.content]
        streamed = [] if made.logprobs is None else made.logprobs.content
        assert [each.token for each in streamed] == tokens


def thought_of(message: Any) -> str:
    return getattr(message, "reasoning_content", None) or ""


def test_responses(scripted: ScriptedServer, expected: Any) -> None:
    text, thought, calls = expected
    asked = {"model": NAME, "input": QUESTION, "tools": _RESPONSES_TOOLS}
    whole = strictly(Response, post(scripted, "/v1/responses", asked))
    check_response(whole, text, thought, calls)
    events = events_of(post(scripted, "/v1/responses", asked | {"stream": True}))
    made = [strictly(ResponseStreamEvent, data) for _, data in events]
    assert [name for name, _ in events] == [event.type for event in made]
    assert [event.sequence_number for event in made] == list(range(len(made)))
    check_items(made)
    check_response(made[-1].response, text, thought, calls)
    with openai_client(scripted.address).responses.stream(**asked) as stream:
        for _ in stream:
            pass
        check_response(stream.get_final_response(), text, thought, calls)
    stored = strictly(Response, got(scripted, f"/v1/responses/{whole.id}"))
    assert stored.output == whole.output


def got(scripted: ScriptedServer, path: str) -> bytes:
    return posted(f"{scripted.address}{path}")


def check_response(response: Any, text: str, thought: str, calls: Any) -> None:
    assert (response.status, response.output_text) == ("completed", text)
    thoughts = [each for each in response.output if each.type == "reasoning"]
    assert "".join(part.text for each in thoughts for part in each.content) == thought
    functions = [each for each in response.output if each.type == "function_call"]
    assert called((each.name, each.arguments) for each in functions) == calls


def check_items(events: list[Any]) -> None:
    """Each item is added, written and done before the next; deltas make what is done."""
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    deltas, number, is_open = "", 0, False
    for event in events[2:-1]:
        assert event.output_index == number
        match event.type.rpartition(".")[2]:
            case "added" if event.type == "response.output_item.added":
                assert not is_open
                deltas, is_open = "", True
            case "delta":
                deltas += event.delta
            case "done" if event.type == "response.output_item.done":
                assert is_open
                number, is_open = number + 1, False
                assert events[-1].response.output[number - 1] == event.item
            case "done" if hasattr(event, "text") or hasattr(event, "arguments"):
                done = event.text if hasattr(event, "text") else event.arguments
                assert done == deltas
    assert not is_open
    assert len(events[-1].response.output) == number


def test_messages(scripted: ScriptedServer, expected: Any) -> None:
    text, thought, calls = expected
    asked: dict[str, Any] = {"model": NAME, "messages": QUESTION, "max_tokens": 200}
    asked |= {"tools": _MESSAGES_TOOLS, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    whole = strictly(Message, post(scripted, "/v1/messages", asked))
    check_message(whole, text, thought, calls)
    events = events_of(post(scripted, "/v1/messages", asked | {"stream": True}))
    made = [strictly(RawMessageStreamEvent, data) for _, data in events]
    assert [name for name, _ in events] == [event.type for event in made]
    check_blocks(made)
    with anthropic_client(scripted.address).messages.stream(**asked) as stream:
        final = stream.get_final_message()
    check_message(final, text, thought, calls)
    assert final.usage.output_tokens == whole.usage.output_tokens
    count = {name: value for name, value in asked.items() if name != "max_tokens"}
    counted = strictly(MessageTokensCount, post(scripted, "/v1/messages/count_tokens", count))
    assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


def check_message(message: Any, text: str, thought: str, calls: Any) -> None:
    assert message.stop_reason == ("tool_use" if calls else "end_turn")
    assert "".join(each.text for each in message.content if each.type == "text") == text
    assert "".join(each.thinking for each in message.content if each.type == "thinking") == thought
    used = [(each.name, each.input) for each in message.content if each.type == "tool_use"]
    assert used == calls


def check_blocks(events: list[Any]) -> None:
    """One block after the other, each begun and ended; thoughts have a signature."""
    assert events[0].type == "message_start"
    assert [event.type for event in events[-2:]] == ["message_delta", "message_stop"]
    number, kinds = 0, dict[int, str]()
    for event in events[1:-2]:
        assert event.index == number
        match event.type:
            case "content_block_start":
                assert number not in kinds
                kinds[number] = event.content_block.type
            case "content_block_delta":
                wanted = {"text": ["text_delta"], "tool_use": ["input_json_delta"]}
                thinking = ["thinking_delta", "signature_delta"]
                assert event.delta.type in wanted.get(kinds[number], thinking)
            case "content_block_stop":
                assert number in kinds
                number += 1
    assert number == len(kinds)


@pytest.mark.parametrize("limit", [1, 3, 12, 30])
def test_answers_that_are_cut(scripted: ScriptedServer, limit: int) -> None:
    """In a thought, in text and in a call."""
    scripted.engine.script = lambda prompt: ANSWERS["parallel calls"][0]
    chat = {"model": NAME, "messages": QUESTION, "tools": _CHAT_TOOLS, "max_tokens": limit}
    whole = strictly(ChatCompletion, post(scripted, "/v1/chat/completions", chat))
    assert whole.choices[0].finish_reason == "length"
    for _, data in events_of(post(scripted, "/v1/chat/completions", chat | {"stream": True}))[:-1]:
        strictly(ChatCompletionChunk, data)
    asked: dict[str, Any] = {"model": NAME, "input": QUESTION, "tools": _RESPONSES_TOOLS}
    asked |= {"max_output_tokens": limit}
    response = strictly(Response, post(scripted, "/v1/responses", asked))
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    events = events_of(post(scripted, "/v1/responses", asked | {"stream": True}))
    made = [strictly(ResponseStreamEvent, data) for _, data in events]
    assert made[-1].type == "response.incomplete"
    body = {"model": NAME, "messages": QUESTION, "tools": _MESSAGES_TOOLS, "max_tokens": limit}
    assert strictly(Message, post(scripted, "/v1/messages", body)).stop_reason == "max_tokens"
    blocks = events_of(post(scripted, "/v1/messages", body | {"stream": True}))
    check_blocks([strictly(RawMessageStreamEvent, data) for _, data in blocks])


def test_completions_and_models(scripted: ScriptedServer) -> None:
    scripted.engine.script = lambda prompt: "Nothing."
    asked: dict[str, Any] = {"model": NAME, "prompt": "In a.txt is", "logprobs": 2, "n": 2}
    assert len(strictly(Completion, post(scripted, "/v1/completions", asked)).choices) == 2
    events = events_of(post(scripted, "/v1/completions", asked | {"stream": True}))
    chunks = [json.loads(data) for _, data in events[:-1]]
    for chunk in chunks:  # the published type has no null here, which the published API sends
        chunk["choices"][0]["finish_reason"] = chunk["choices"][0]["finish_reason"] or "stop"
        strictly(Completion, json.dumps(chunk))
    (model,) = json.loads(got(scripted, "/v1/models"))["data"]
    assert strictly(Model, json.dumps(model)).id == NAME
