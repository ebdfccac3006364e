"""What a conversation must look like before a chat template sees it, and a check that the template
has used it: a template may skip a message without a word, and the model then answers another
question than the one asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moesaic.core.errors import ImpossibleSetting, UnknownName

ROLES = ("system", "developer", "user", "assistant", "tool")
_FORM = '{"role": "user", "content": "Hello"}'
_INSTRUCTIONS = ("system", "developer")

# Each with role and content; an assistant's may have tool calls, a tool's the name of its call.
Messages = Sequence[Mapping[str, Any]]


def check_messages(messages: object) -> None:
    """Every message is a mapping with a known role and text."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise ImpossibleSetting(
            f"the conversation is {_short(messages)}: give a list of messages, such as [{_FORM}]"
        )
    if not messages:
        raise ImpossibleSetting("a conversation needs at least one message, this one has none.")
    for number, message in enumerate(messages, start=1):
        _check_message(number, message)


def refuse_dropped(render: Callable[[Messages], str], messages: Messages, text: str) -> None:
    """`text` is what the template made of the messages. A system message without which it is the
    same has been dropped; messages of users and tools may rightly be (older tool results)."""
    for index, message in enumerate(messages):
        others = [*messages[:index], *messages[index + 1 :]]
        if message["role"] not in _INSTRUCTIONS or not others or not message.get("content"):
            continue
        try:
            without = render(others)
        except ImpossibleSetting:
            continue  # the template insists on this message
        if without == text:
            raise ImpossibleSetting(
                f"the model's chat template drops the {message['role']} message "
                f"{_short(message['content'])}, so the model would not see it: leave it out, or "
                "put it into the first user message"
            )


def _check_message(number: int, message: Any) -> None:
    if not isinstance(message, Mapping):
        raise ImpossibleSetting(
            f"message {number} of the conversation is {_short(message)}: expected a role and a "
            f"content, such as {_FORM}"
        )
    if not isinstance(message.get("role"), str):
        found = f"the role {_short(message['role'])}" if "role" in message else "no role"
        raise ImpossibleSetting(
            f"message {number} of the conversation has {found}: give it one of {', '.join(ROLES)}"
        )
    if message["role"] not in ROLES:
        raise UnknownName(f"role of message {number}:", message["role"], ROLES)
    content = message.get("content")
    calls_a_tool = content is None and message.get("tool_calls")
    if not isinstance(content, str) and not calls_a_tool:
        found = f"the content {_short(content)}" if "content" in message else "no content"
        raise ImpossibleSetting(
            f"message {number} of the conversation has {found}: give it text, such as {_FORM}"
        )


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
