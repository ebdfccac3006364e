"""What a model's chat template does with conversations that not every template can write: agents
send several system messages, calls side by side, and thoughts beside both.

The template is asked, not known: it writes small conversations, and what it refuses, drops or
moves is seen in the text. `shape` then writes a conversation so that the template keeps it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from moesaic.core.errors import ImpossibleSetting
from moesaic.models.text.tokenizer import Tokenizer

Message = dict[str, Any]

# Under which names templates know the thoughts of an earlier answer. `INLINE`: as tags in its text.
FIELDS = ("reasoning_content", "reasoning", "thinking")
INLINE = "content"

_CALL_ID = "abcdef12"  # and a letter: nine characters, which templates of Mistral demand
_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "Where."}},
            "required": ["place"],
        },
    },
}
_AS_PYTHON = "{'place'"  # arguments that a template has printed as they are
_USER = {"role": "user", "content": "question-a"}
_NEXT = {"role": "user", "content": "question-b"}
_SAID = {"role": "assistant", "content": "answer-a"}


@dataclass(frozen=True, slots=True)
class TemplateRules:
    """The defaults are those of a template that writes everything as it comes."""

    developer: bool = True  # has a role of this name, beside `system`
    system: bool = True  # writes a first system message
    several_systems: bool = True  # in a row, at the beginning
    later_systems: bool = True  # inside the conversation, in their place
    users_in_a_row: bool = True
    user_after_tool: bool = True
    several_calls: bool = True  # in one message
    text_beside_calls: bool = True
    no_text: str | None = ""  # the content of a message that only calls
    text_beside_thoughts: bool = True  # in a message that also calls
    arguments_as_text: bool = False
    short_ids: bool = False  # of calls: nine letters and digits
    reasoning: str | None = FIELDS[0]  # one of FIELDS, or INLINE; None: thoughts are not written


@lru_cache(maxsize=4)
def rules_of(tokenizer: Tokenizer) -> TemplateRules:
    """Asked once per tokenizer."""
    probe = _Probe(tokenizer)
    if not tokenizer.has_chat_template or not probe.keeps(_USER):
        return TemplateRules()
    return _of_calls(probe, _of_roles(probe))


def _of_roles(probe: _Probe) -> TemplateRules:
    developer = probe.names("developer") and probe.keeps(_instructions("developer", "a"), _USER)
    role = "developer" if developer else "system"
    first, second = _instructions(role, "a"), _instructions(role, "b")
    return TemplateRules(
        developer=developer,
        system=probe.keeps(_instructions("system", "a"), _USER),
        several_systems=probe.keeps(first, second, _USER),
        later_systems=probe.keeps(_USER, _instructions("system", "a"))
        and probe.keeps(first, _USER, second)
        and probe.keeps(first, _USER, _SAID, second, _NEXT),
        users_in_a_row=probe.keeps(_USER, _NEXT),
    )


def _of_calls(probe: _Probe, rules: TemplateRules) -> TemplateRules:
    found = [
        (as_text, empty)
        for as_text in (False, True)
        for empty in ("", None)
        if probe.keeps(_USER, _calling("a", as_text, empty), _result("a"))
    ]
    if not found:  # a template without tools
        return rules
    as_text, empty = found[0]
    call, result = _calling("a", as_text, empty), _result("a")
    other, its_result = _calling("b", as_text, empty), _result("b")
    both = call | {"tool_calls": call["tool_calls"] + other["tool_calls"]}
    beside = call | {"content": "answer-a"}
    reasoning = _reasoning(probe, call, result)
    thinking = beside if reasoning is None else beside | {reasoning: "thought-a"}
    return replace(
        rules,
        arguments_as_text=as_text,
        short_ids=not probe.keeps(_USER, *_renamed(call, result)),
        no_text=empty,
        user_after_tool=probe.keeps(_USER, call, result, _NEXT),
        several_calls=probe.keeps(_USER, both, result, its_result),
        text_beside_calls=probe.keeps(_USER, beside, result),
        reasoning=reasoning,
        text_beside_thoughts=reasoning == INLINE or probe.keeps(_USER, thinking, result),
    )


def _reasoning(probe: _Probe, call: Message, result: Message) -> str | None:
    for name in FIELDS:
        if probe.writes("thought-a", _USER, call | {name: "thought-a"}, result):
            return name
    tagged = call | {"content": inline("thought-a", "")}
    kept = probe.names("</think>") and probe.writes("thought-a", _USER, tagged, result)
    return INLINE if kept else None


def inline(thought: str, text: str) -> str:
    """An answer with its thoughts between tags, as models write it."""
    return f"<think>\n{thought}\n</think>\n\n{text}"


class _Probe:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def names(self, word: str) -> bool:
        return self._tokenizer.names_in_template(word)

    def keeps(self, *messages: Message) -> bool:
        """Whether all of these stand in the text, in this order; with tools where they are called,
        else also without."""
        words = [word for message in messages for word in _words(message)]
        ways = (True,) if any("tool_calls" in each for each in messages) else (False, True)
        texts = [self._text(messages, with_tools) for with_tools in ways]
        return all(_in_order(text, words) and _AS_PYTHON not in text for text in texts)

    def writes(self, word: str, *messages: Message) -> bool:
        return word in self._text(messages, True)

    def _text(self, messages: tuple[Message, ...], with_tools: bool) -> str:
        variables = {"tools": [_TOOL]} if with_tools else {}
        try:
            return self._tokenizer.render_chat(messages, variables=variables)
        except ImpossibleSetting:
            return ""


def _in_order(text: str, words: list[str]) -> bool:
    place = 0
    for word in words:
        place = text.find(word, place)
        if place < 0:
            return False
        place += len(word)
    return True


def _words(message: Message) -> list[str]:
    """What a template must write of a probe's message, in this order. That thoughts are dropped is
    the template's choice."""
    words = [message["content"]] if message["content"] else []
    return words + [f"place-{call['id'][-1]}" for call in message.get("tool_calls", [])]


def _instructions(role: str, mark: str) -> Message:
    return {"role": role, "content": f"instructions-{mark}"}


def _calling(mark: str, as_text: bool, content: str | None) -> Message:
    arguments: Any = {"place": f"place-{mark}"}
    function = {"name": "look", "arguments": json.dumps(arguments) if as_text else arguments}
    call = {"type": "function", "id": f"{_CALL_ID}{mark}", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def _renamed(call: Message, result: Message) -> tuple[Message, Message]:
    """With an id as clients and this server make them."""
    long = "call_0123456789abcdef-a"
    calls = [each | {"id": long} for each in call["tool_calls"]]
    return call | {"tool_calls": calls}, result | {"tool_call_id": long}


def _result(mark: str) -> Message:
    result = {"role": "tool", "content": f"result-{mark}", "name": "look"}
    return result | {"tool_call_id": f"{_CALL_ID}{mark}"}
