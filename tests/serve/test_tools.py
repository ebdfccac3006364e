"""Do clients get the tool calls that they demand, by every API? The bundled model knows no tools: a
grammar makes it write calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from servers import NAME, QUESTION, Server, server

LOOK = {
    "name": "look",
    "description": "Look at something.",
    "parameters": {
        "type": "object",
        "properties": {"place": {"enum": ["here", "there"]}, "often": {"type": "boolean"}},
        "required": ["place", "often"],
        "additionalProperties": False,
    },
}
COUNT = {
    "name": "count",
    "parameters": {
        "type": "object",
        "properties": {"what": {"enum": ["pens", "apples"]}},
        "required": ["what"],
        "additionalProperties": False,
    },
}
TOOLS = [{"type": "function", "function": function} for function in (LOOK, COUNT)]
NAMED = {"type": "function", "function": {"name": "count"}}


@pytest.fixture(scope="module")
def hermes() -> Iterator[Server]:
    with server("--tool-format", "hermes") as made:
        yield made


@pytest.fixture(scope="module")
def client(hermes: Server) -> Any:
    return hermes.client()


def ask(client: Any, **options: Any) -> Any:
    given = {"model": NAME, "messages": QUESTION, "max_tokens": 100, "temperature": 0}
    return client.chat.completions.create(**given | {"tools": TOOLS} | options)


def check(name: str, arguments: dict[str, Any]) -> None:
    if name == "look":
        assert set(arguments) == {"place", "often"}
        assert arguments["place"] in ("here", "there")
        assert isinstance(arguments["often"], bool)
    else:
        assert (name, list(arguments)) == ("count", ["what"])
        assert arguments["what"] in ("pens", "apples")


@pytest.mark.parametrize(
    ("choice", "names"), [("required", ("look", "count")), (NAMED, ("count",))]
)
def test_a_demanded_call_is_made(client: Any, choice: Any, names: tuple[str, ...]) -> None:
    (answer,) = ask(client, tool_choice=choice, parallel_tool_calls=False).choices
    assert answer.finish_reason == "tool_calls"
    assert not answer.message.content
    (call,) = answer.message.tool_calls
    assert call.function.name in names
    check(call.function.name, json.loads(call.function.arguments))


def test_a_stream_makes_the_same_call(client: Any) -> None:
    (whole,) = ask(client, tool_choice=NAMED).choices
    name, arguments, reasons = "", "", []
    for chunk in ask(client, tool_choice=NAMED, stream=True):
        (choice,) = chunk.choices
        reasons.append(choice.finish_reason)
        for call in choice.delta.tool_calls or []:
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    function = whole.message.tool_calls[0].function
    assert (name, arguments) == (function.name, function.arguments)
    assert reasons[-1] == "tool_calls"


def test_the_responses_api_has_the_call_as_an_item(client: Any) -> None:
    tools = [{"type": "function", "strict": True, **function} for function in (LOOK, COUNT)]
    choice = {"type": "function", "name": "count"}
    answer = client.responses.create(
        model=NAME, input=QUESTION, tools=tools, tool_choice=choice, temperature=0
    )
    (item,) = answer.output
    assert (item.type, item.name, answer.status) == ("function_call", "count", "completed")
    check(item.name, json.loads(item.arguments))
    result = {"type": "function_call_output", "call_id": item.call_id, "output": "5"}
    after = client.responses.create(
        model=NAME, input=[result], previous_response_id=answer.id, max_output_tokens=4
    )
    assert after.output_text


def test_the_messages_api_has_the_call_as_a_block(hermes: Server) -> None:
    client = anthropic.Anthropic(base_url=hermes.address, api_key="unused", max_retries=0)
    tools = [{"name": each["name"], "input_schema": each["parameters"]} for each in (LOOK, COUNT)]
    asked: Any = {"model": NAME, "messages": QUESTION, "max_tokens": 100, "tools": tools}
    asked |= {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    asked |= {"extra_body": {"temperature": 0}}
    answer = client.messages.create(**asked)
    (block,) = answer.content
    assert block.type == "tool_use"
    assert answer.stop_reason == "tool_use"
    check(block.name, block.input)
    with client.messages.stream(**asked) as stream:
        (streamed,) = stream.get_final_message().content
    assert streamed.type == "tool_use"
    assert (streamed.name, streamed.input) == (block.name, block.input)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tool_choice": "always"}, "possible are none, auto, required"),
        ({"tool_choice": "required", "tools": []}, "there are no tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "find"}}}, "find"),
        (
            {"tool_choice": "required", "response_format": {"type": "json_object"}},
            "leave out one of the two",
        ),
        ({"tool_choice": "required", "extra_body": {"regex": "a"}}, "leave out one of the two"),
    ],
)
def test_demands_that_cannot_be_met_are_refused(
    client: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        ask(client, **options)


def test_a_model_without_a_format_says_so(shared: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="no calls"):
        ask(shared.client(), tool_choice="required")


def test_an_unknown_format_is_refused_before_the_model_is_loaded() -> None:
    with pytest.raises(AssertionError, match="hermes"), server("--tool-format", "hermez"):
        pass
