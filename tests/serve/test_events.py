"""Do a parser's events become the chat API's deltas, and does a template get its tools?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import small_tokenizers
from moesaic.models.text.tokenizer import Tokenizer
from moesaic.serve.api_error import ApiError
from moesaic.serve.chat_choice import ChatChoice
from moesaic.serve.conversation import conversation_tokens
from moesaic.serve.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from moesaic.serve.formats.detect import choose
from moesaic.serve.schemas import ChatRequest, decode


class Scripted:
    """A parser whose events are given."""

    def __init__(self, *events: list[Event]) -> None:
        self._events = list(events)

    def feed(self, text: str) -> list[Event]:
        return self._events.pop(0)

    def finish(self) -> list[Event]:
        return [each for several in self._events for each in several]


def test_events_become_deltas_and_one_message() -> None:
    choice = ChatChoice(
        Scripted(
            [ReasoningDelta("It "), ReasoningDelta("rains.")],
            [TextDelta("Let me look. "), ToolCallBegin(0, "weather", "call_1")],
            [ToolArguments(0, '{"city": '), ToolArguments(0, '"Bonn"}'), ToolCallEnd(0)],
            [ToolCallBegin(1, "time", None), ToolArguments(1, "{}"), ToolCallEnd(1)],
        )
    )
    assert choice.feed("a", None) == [
        {"reasoning_content": "It "},
        {"reasoning_content": "rains."},
    ]
    text, begin = choice.feed("b", None)
    assert text == {"content": "Let me look. "}
    function = {"name": "weather", "arguments": ""}
    (call,) = begin["tool_calls"]
    assert call == {"index": 0, "id": "call_1", "type": "function", "function": function}
    deltas = choice.feed("c", "stop")
    assert deltas[0] == {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]}
    assert choice.finish_reason == "tool_calls"
    message = choice.message()
    assert message["content"] == "Let me look. "
    assert message["reasoning_content"] == "It rains."
    first, second = message["tool_calls"]
    assert first["function"] == {"name": "weather", "arguments": '{"city": "Bonn"}'}
    assert second["function"] == {"name": "time", "arguments": "{}"}
    assert second["id"].startswith("call_")
    assert deltas[2]["tool_calls"][0]["id"] == second["id"], "the same in a stream"


def test_a_message_that_only_calls_has_no_content_and_a_cut_one_is_cut() -> None:
    choice = ChatChoice(Scripted([ToolCallBegin(0, "weather", None)]))
    choice.feed("a", "length")
    assert choice.message()["content"] is None
    assert choice.finish_reason == "length"


def test_plain_text_passes_through() -> None:
    choice = ChatChoice(choose("plain").parser())
    assert choice.feed("<tool_call>", None) == [{"content": "<tool_call>"}]
    assert choice.feed("", "incomplete") == []
    assert choice.message() == {"role": "assistant", "content": "<tool_call>"}
    assert choice.finish_reason == "length"


TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{{ mood }}"
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.function.arguments.city }}{% endfor %}]{% endfor %}"
)
WEATHER = {"name": "weather", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": WEATHER}


def prompt(folder: Path, template: str = TEMPLATE, **fields: Any) -> str:
    path = small_tokenizers.save(folder / "model", "byte-level", chat_template=template)
    request = {"messages": [{"role": "user", "content": "Hi"}]} | fields
    tokenizer = Tokenizer.open(path)
    tokens = conversation_tokens(decode(json.dumps(request).encode(), ChatRequest), tokenizer)
    return tokenizer.decode(tokens)


def test_a_template_gets_tools_unless_none_may_be_called(tmp_path: Path) -> None:
    asked = prompt(tmp_path, tools=[TOOL])
    assert json.loads(asked.partition("[user:")[0]) == [TOOL]
    assert prompt(tmp_path, tools=[TOOL], tool_choice="none") == "[user:Hi]"


def test_a_template_gets_its_own_arguments(tmp_path: Path) -> None:
    assert prompt(tmp_path, chat_template_kwargs={"mood": "calm"}) == "calm[user:Hi]"
    with pytest.raises(ApiError, match="messages"):
        prompt(tmp_path, chat_template_kwargs={"messages": []})


def test_a_call_of_the_conversation_is_a_value_to_the_template(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "w", "arguments": '{"city": "Bo"}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = {"role": "tool", "tool_call_id": "1", "content": "rain"}
    user = {"role": "user", "content": "Hi"}
    got = prompt(tmp_path, messages=[user, said, answer])
    assert got == "[user:Hi][assistant:Bo][tool:rain]"


def test_a_call_that_was_cut_does_not_end_its_conversation(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}"
    call = {"id": "1", "type": "function", "function": {"name": "w", "arguments": '{"city": "B'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    (shown,) = json.loads(prompt(tmp_path, template, messages=[said]))
    assert shown["function"]["arguments"] == {"unfinished": '{"city": "B'}


def test_a_developer_is_the_system_where_the_template_knows_none(tmp_path: Path) -> None:
    messages = [{"role": "developer", "content": "Be brief."}]
    assert prompt(tmp_path, messages=messages) == "[system:Be brief.]"
    knows = TEMPLATE + "{# developer #}"
    assert prompt(tmp_path, knows, messages=messages) == "[developer:Be brief.]"
