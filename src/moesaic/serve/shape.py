"""A conversation in the form that a model's chat template keeps: nothing of it is left out, and
messages stay in their order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from moesaic.serve.template_rules import FIELDS, INLINE, Message, TemplateRules, inline

_INSTRUCTIONS = ("system", "developer")
_BETWEEN = "\n\n"
_SHORT = 9  # letters and digits of an id


def shape(messages: Sequence[Message], rules: TemplateRules) -> list[Message]:
    """Messages have a role, text or None as content, calls with arguments as values, and thoughts
    as `reasoning_content`."""
    made: list[Message] = []
    for message in _with_own_results(messages, rules):
        for each in _parts(message, rules):
            _append(made, _role(each, made, rules), rules)
    return made


def _with_own_results(messages: Sequence[Message], rules: TemplateRules) -> list[Message]:
    """Where a template writes one call of a message alone, each call is a message, and the results
    follow their calls."""
    if rules.several_calls or not any(len(each.get("tool_calls", ())) > 1 for each in messages):
        return list(messages)
    made: list[Message] = []
    results = {id(each): each for each in messages if each["role"] == "tool"}
    for message in messages:
        calls = message.get("tool_calls", ())
        if message["role"] == "tool" and id(message) not in results:
            continue  # it stands behind its call
        if len(calls) < 2:
            made.append(message)
            continue
        for number, call in enumerate(calls):
            first = message if number == 0 else {"role": "assistant", "content": ""}
            made.append(first | {"tool_calls": [call]})
            own = [key for key, each in results.items() if each.get("tool_call_id") == call["id"]]
            made += [results.pop(key) for key in own[:1]]
    return made


def _parts(message: Message, rules: TemplateRules) -> list[Message]:
    """The message in the template's words; what it does not write beside calls comes before."""
    if rules.short_ids and message.get("tool_call_id"):
        message = message | {"tool_call_id": _short(message["tool_call_id"])}
    if message["role"] != "assistant":
        return [message]
    made = {name: value for name, value in message.items() if name not in FIELDS}
    text, thought = message["content"] or "", message.get(FIELDS[0])
    calls = [_call(each, rules) for each in message.get("tool_calls", ())]
    if thought and rules.reasoning == INLINE:
        text = inline(thought, text)
    elif thought and rules.reasoning is not None:
        if calls and text and not rules.text_beside_thoughts:
            thought, text = f"{thought}{_BETWEEN}{text}", ""
        made[rules.reasoning] = thought
    if not calls:
        return [made | {"content": text}]
    made["tool_calls"] = calls
    if text and not rules.text_beside_calls:
        before = {"role": "assistant", "content": text}
        return [before, made | {"content": rules.no_text}]
    return [made | {"content": text or rules.no_text}]


def _call(call: dict[str, Any], rules: TemplateRules) -> dict[str, Any]:
    if rules.short_ids and call["id"]:
        call = call | {"id": _short(call["id"])}
    if not rules.arguments_as_text:
        return call
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return call | {"function": function | {"arguments": arguments}}


def _short(call_id: str) -> str:
    """The same for a call and its result, and in every request; ids that are short stay."""
    if len(call_id) == _SHORT and call_id.isascii() and call_id.isalnum():
        return call_id
    return sha256(call_id.encode()).hexdigest()[:_SHORT]


def _role(message: Message, before: Sequence[Message], rules: TemplateRules) -> Message:
    """A system message that the template would refuse, drop or move from its place is a user's."""
    role = message["role"]
    if role == "developer" and not rules.developer:
        role = "system"
    at_beginning = all(each["role"] in _INSTRUCTIONS for each in before)
    if role in _INSTRUCTIONS and rules.system and not (at_beginning or rules.later_systems):
        role = "user"
    return message | {"role": role}


def _append(made: list[Message], message: Message, rules: TemplateRules) -> None:
    """Text that the template does not take as a message of its own belongs to the one before."""
    last = made[-1] if made else None
    if last is not None and _joins(last["role"], message["role"], rules):
        texts = (last["content"], message["content"])
        made[-1] = last | {"content": _BETWEEN.join(text for text in texts if text)}
    else:
        made.append(message)


def _joins(before: str, role: str, rules: TemplateRules) -> bool:
    if role == "user":
        return (before == "user" and not rules.users_in_a_row) or (
            before == "tool" and not rules.user_after_tool
        )
    both = before in _INSTRUCTIONS and role in _INSTRUCTIONS
    return both and rules.system and not rules.several_systems
