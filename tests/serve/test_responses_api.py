"""Does the published client get the model's answers from /v1/responses?"""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from servers import NAME, QUESTION, Server

from moesaic.serve.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from moesaic.serve.responses.output import Output
from moesaic.serve.responses.schemas import ResponsesRequest
from moesaic.serve.responses.to_chat import chat_request
from moesaic.serve.schemas import decode

ASKED = QUESTION[0]["content"]


@pytest.fixture(scope="module")
def client(shared: Server) -> Any:
    return shared.client()


def ask(client: Any, **options: Any) -> Any:
    return client.responses.create(
        **{"model": NAME, "input": ASKED, "max_output_tokens": 24, "temperature": 0} | options
    )


def test_an_answer_is_that_of_the_chat_api(client: Any) -> None:
    said = client.chat.completions.create(
        model=NAME, messages=QUESTION, max_tokens=24, temperature=0
    )
    answer = ask(client)
    assert answer.output_text == said.choices[0].message.content
    assert answer.usage.input_tokens == said.usage.prompt_tokens
    assert answer.usage.output_tokens == said.usage.completion_tokens
    ends = {"stop": "completed", "length": "incomplete"}
    assert answer.status == ends[said.choices[0].finish_reason]
    parts = [{"role": "user", "content": [{"type": "input_text", "text": ASKED}]}]
    assert ask(client, input=parts).output_text == answer.output_text


def test_a_stream_makes_the_same_response(client: Any) -> None:
    whole, events = ask(client), list(ask(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-1] == f"response.{whole.status}"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text
    with client.responses.stream(
        model=NAME, input=ASKED, max_output_tokens=24, temperature=0
    ) as stream:
        assert [event.type for event in stream][-1] == kinds[-1]


def test_a_conversation_goes_on_from_what_is_stored(client: Any) -> None:
    first = ask(client)
    second = ask(client, input="And with 3 more?", previous_response_id=first.id)
    history = [*QUESTION, {"role": "assistant", "content": first.output_text}]
    history.append({"role": "user", "content": "And with 3 more?"})
    assert ask(client, input=history).usage.input_tokens == second.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0
    assert client.responses.retrieve(first.id).output_text == first.output_text
    listed = client.responses.input_items.list(second.id).data
    assert [item.role for item in listed] == ["user", "assistant", "user"]
    client.responses.delete(first.id)
    for call in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="keeps the last"):
            call(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(ask(client, store=False).id)


def test_an_answer_follows_a_schema(client: Any) -> None:
    schema = {"type": "object", "properties": {"pens": {"type": "integer"}}, "required": ["pens"]}
    form = {
        "type": "json_schema",
        "name": "pens",
        "schema": schema | {"additionalProperties": False},
    }
    answer = ask(client, max_output_tokens=60, text={"format": form})
    assert set(json.loads(answer.output_text)) == {"pens"}
    assert answer.text.format.name == "pens"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"input": []}, "input is empty"),
        ({"input": [{"role": "robot", "content": "hello"}]}, "has the role 'robot'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "reads text"),
        ({"input": [{"type": "function_call", "call_id": "a"}]}, "needs name"),
        ({"background": True}, "leave it out, and stream"),
        ({"conversation": "conv_1"}, "use previous_response_id"),
    ],
)
def test_mistakes_are_refused(client: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        ask(client, **options)


# What the template gets, and what becomes of events: no model needed.

CONVERSATION: dict[str, Any] = {
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": "Look twice."},
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Two calls."}],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"at": [1]}'},
        {"type": "function_call", "call_id": "b", "name": "find", "arguments": ""},
        {"type": "local_shell_call", "call_id": "c", "id": "x", "status": "completed"},
        {"type": "function_call_output", "call_id": "a", "output": "nothing"},
        {
            "type": "function_call_output",
            "call_id": "b",
            "output": [{"type": "input_text", "text": "lost"}],
        },
        {"role": "user", "content": "And now?"},
    ],
    "tools": [
        {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True},
        {"type": "web_search"},
        {"type": "custom", "name": "apply_patch"},
    ],
    "tool_choice": {"type": "function", "name": "look"},
}


def test_a_conversation_with_tools_is_one_of_the_chat_api() -> None:
    asked = decode(json.dumps(CONVERSATION).encode(), ResponsesRequest)
    chat = chat_request(asked, [{"role": "user", "content": "Hello."}])
    roles = [message.role for message in chat.messages]
    assert roles == ["system", "user", "user", "assistant", "tool", "tool", "user"]
    answer, first, second = chat.messages[3:6]
    assert (answer.content, answer.reasoning_content) == ("I look.", "Two calls.")
    calls = [(call.id, call.function) for call in answer.tool_calls or []]
    assert [(call_id, function.name, function.arguments) for call_id, function in calls] == [
        ("a", "look", '{"at": [1]}'),
        ("b", "find", "{}"),
    ]
    assert (first.tool_call_id, first.name, first.content) == ("a", "look", "nothing")
    assert (second.name, second.content) == ("find", "lost")
    assert [tool.function.name for tool in chat.tools or [] if tool.function] == ["look"]
    assert chat.tool_choice == {"type": "function", "function": {"name": "look"}}


def test_every_kind_of_event_has_its_item() -> None:
    output, said = Output(), list[dict[str, Any]]()
    events: list[Event] = [
        ReasoningDelta("Two "), ReasoningDelta("calls."), TextDelta("I look."),
        ToolCallBegin(0, "look", None), ToolArguments(0, '{"at": '), ToolArguments(0, "[1]}"),
        ToolCallEnd(0), ToolCallBegin(1, "find", "given"), ToolArguments(1, '{"a'),
    ]  # fmt: skip
    for event in events:
        said += output.add(event)
    said += output.end("incomplete")
    thought, text, call, cut = output.items
    assert thought["content"][0] == {"type": "reasoning_text", "text": "Two calls."}
    assert text["content"][0]["text"] == "I look."
    assert (call["name"], call["arguments"], call["status"]) == ("look", '{"at": [1]}', "completed")
    assert (cut["call_id"], cut["arguments"], cut["status"]) == ("given", '{"a', "incomplete")
    kinds = [(each["type"].removeprefix("response."), each["output_index"]) for each in said]
    assert kinds == [
        ("output_item.added", 0), ("content_part.added", 0), ("reasoning_text.delta", 0),
        ("reasoning_text.delta", 0), ("reasoning_text.done", 0), ("content_part.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1), ("content_part.added", 1), ("output_text.delta", 1),
        ("output_text.done", 1), ("content_part.done", 1), ("output_item.done", 1),
        ("output_item.added", 2), ("function_call_arguments.delta", 2),
        ("function_call_arguments.delta", 2), ("function_call_arguments.done", 2),
        ("output_item.done", 2),
        ("output_item.added", 3), ("function_call_arguments.delta", 3),
        ("function_call_arguments.done", 3), ("output_item.done", 3),
    ]  # fmt: skip
