"""Does the published client get the model's answers from /v1/messages?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from servers import NAME, QUESTION, Server, server

pytest.importorskip("anthropic")

import anthropic

from moesaic.serve.anthropic.content import Content
from moesaic.serve.anthropic.schemas import MessagesRequest
from moesaic.serve.anthropic.to_chat import chat_request
from moesaic.serve.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from moesaic.serve.schemas import decode

GREEDY = {"temperature": 0}  # which newer clients have no parameter for


def client_of(made: Server, key: str = "unused") -> Any:
    return anthropic.Anthropic(base_url=made.address, api_key=key, max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def client(shared: Server) -> Any:
    return client_of(shared)


def kind_of(error: anthropic.APIStatusError) -> str:
    body: Any = error.body
    assert body["type"] == "error"
    return str(body["error"]["type"])


def ask(client: Any, **options: Any) -> Any:
    return client.messages.create(
        **{"model": NAME, "messages": QUESTION, "max_tokens": 24, "extra_body": GREEDY} | options
    )


def test_an_answer_is_that_of_the_chat_api(client: Any, shared: Server) -> None:
    said = shared.client().chat.completions.create(
        model=NAME, messages=QUESTION, max_tokens=24, temperature=0
    )
    answer = ask(client)
    (block,) = answer.content
    assert (answer.type, answer.role, block.type) == ("message", "assistant", "text")
    assert block.text == said.choices[0].message.content
    ends = {"stop": "end_turn", "length": "max_tokens"}
    assert answer.stop_reason == ends[said.choices[0].finish_reason]
    used = answer.usage
    assert used.input_tokens + used.cache_read_input_tokens == said.usage.prompt_tokens
    assert used.output_tokens == said.usage.completion_tokens


def test_a_stream_makes_the_same_message(client: Any) -> None:
    whole = ask(client)
    with client.messages.stream(
        model=NAME, messages=QUESTION, max_tokens=24, extra_body=GREEDY
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    kinds = [event.type for event in ask(client, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_why_an_answer_ended_is_said(client: Any) -> None:
    assert ask(client, max_tokens=2).stop_reason == "max_tokens"
    text = ask(client).content[0].text
    stopped = ask(client, stop_sequences=["\x00", text[3:6]])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", text[3:6])


def test_tokens_are_counted_as_they_are_read(client: Any) -> None:
    counted = client.messages.count_tokens(model=NAME, messages=QUESTION)
    used = ask(client).usage
    assert counted.input_tokens == used.input_tokens + used.cache_read_input_tokens


def test_an_answer_follows_a_schema(client: Any) -> None:
    schema = {"type": "object", "properties": {"pens": {"type": "integer"}}, "required": ["pens"]}
    form = {"type": "json_schema", "schema": schema | {"additionalProperties": False}}
    answer = ask(client, max_tokens=60, output_config={"format": form})
    assert set(json.loads(answer.content[0].text)) == {"pens"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "robot", "content": "hello"}]}, "has the role 'robot'"),
        ({"tool_choice": {"type": "tool"}, "tools": [{"name": "look"}]}, "tool with a name"),
        ({"thinking": {"type": "deeply"}}, "possible are enabled, adaptive, disabled"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "this model reads text"),
    ],
)
def test_mistakes_are_refused_in_the_form_of_this_api(
    client: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(anthropic.BadRequestError, match=words) as caught:
        ask(client, **options)
    assert kind_of(caught.value) == "invalid_request_error"


def test_unknown_models_and_large_bodies(client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        ask(client, model="claude")
    assert kind_of(caught.value) == "not_found_error"
    with pytest.raises(anthropic.APIStatusError) as large:
        ask(client, system="x" * 200_000)
    assert large.value.status_code == 413


@pytest.fixture(scope="module")
def locked() -> Iterator[Server]:
    with server("--api-key", "right") as made:
        yield made


def test_a_key_is_asked_for(locked: Server) -> None:
    with pytest.raises(anthropic.AuthenticationError) as caught:
        ask(client_of(locked, "wrong"))
    assert kind_of(caught.value) == "authentication_error"
    assert ask(client_of(locked, "right"), max_tokens=1).stop_reason == "max_tokens"


# What the template gets, and what becomes of events: no model needed.

CONVERSATION: dict[str, Any] = {
    "max_tokens": 5,
    "system": "Be brief.",
    "messages": [
        {"role": "user", "content": "Look twice."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Two calls.", "signature": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "a", "name": "look", "input": {"at": [1]}},
                {"type": "tool_use", "id": "b", "name": "find", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "nothing"},
                {
                    "type": "tool_result",
                    "tool_use_id": "b",
                    "is_error": True,
                    "content": [{"type": "text", "text": "lost"}],
                },
                {"type": "text", "text": "And now?"},
            ],
        },
    ],
    "tools": [
        {"name": "look", "description": "Look.", "input_schema": {"type": "object"}},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "tool_choice": {"type": "any"},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}


def test_a_conversation_with_tools_is_one_of_the_chat_api() -> None:
    chat = chat_request(decode(json.dumps(CONVERSATION).encode(), MessagesRequest))
    roles = [message.role for message in chat.messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user"]
    _, _, answer, first, second, last = chat.messages
    assert (answer.content, answer.reasoning_content) == ("I look.", "Two calls.")
    assert [(call.id, call.function.name) for call in answer.tool_calls or []] == [
        ("a", "look"),
        ("b", "find"),
    ]
    assert (first.tool_call_id, first.name, first.content) == ("a", "look", "nothing")
    assert (second.tool_call_id, second.name, second.content) == ("b", "find", "Error: lost")
    assert last.content == "And now?"
    assert [tool.function.name for tool in chat.tools or [] if tool.function] == ["look"]
    assert chat.tool_choice == "required"
    assert chat.chat_template_kwargs == {"enable_thinking": True, "thinking": True}


def test_a_line_of_accounting_does_not_keep_a_prompt_from_being_found() -> None:
    def system(number: int) -> Any:
        accounting = f"x-anthropic-billing-header: cc_version=2.1; cch={number:05};"
        texts = (accounting, "You are careful.", "Count pens.")
        blocks = [{"type": "text", "text": text} for text in texts]
        data = json.dumps(CONVERSATION | {"system": blocks}).encode()
        return chat_request(decode(data, MessagesRequest)).messages[0].content

    assert system(1) == system(2) == "You are careful.\n\nCount pens."


def test_every_kind_of_event_has_its_block() -> None:
    content, said = Content(), list[dict[str, Any]]()
    events: list[Event] = [
        ReasoningDelta("Two "), ReasoningDelta("calls."), TextDelta("I look."),
        ToolCallBegin(0, "look", None), ToolArguments(0, '{"at": '), ToolArguments(0, "[1]}"),
        ToolCallEnd(0), ToolCallBegin(1, "find", "given"), ToolArguments(1, '{"a'),
    ]  # fmt: skip
    for event in events:
        said += content.add(event)
    said += content.end()
    thought, text, call, cut = content.blocks()
    assert thought["thinking"] == "Two calls."
    assert text["text"] == "I look."
    assert (call["name"], call["input"]) == ("look", {"at": [1]})
    assert (cut["id"], cut["input"]) == ("given", {"unfinished": '{"a'})
    kinds = [(each["type"].removeprefix("content_block_"), each["index"]) for each in said]
    assert kinds == [
        ("start", 0), ("delta", 0), ("delta", 0), ("stop", 0),
        ("start", 1), ("delta", 1), ("stop", 1),
        ("start", 2), ("delta", 2), ("delta", 2), ("stop", 2),
        ("start", 3), ("delta", 3), ("stop", 3),
    ]  # fmt: skip


def test_a_wrong_method_is_an_error_of_this_api_too(shared: Server) -> None:
    status, data = shared.get("/v1/messages")
    body = json.loads(data)
    assert (status, body["type"]) == (405, "error")
    assert "POST /v1/messages" in body["error"]["message"]
