"""One answer of a conversation, in the words of the chat API: deltas while it is written, and the
message that they make together."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from moesaic.engine.completion import FinishReason
from moesaic.serve.events import (
    Event,
    OutputParser,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegin,
    ToolCallEnd,
)

# `incomplete` is a cut answer, too: the published API has no word for its grammar.
_REASONS = {"stop": "stop", "length": "length", "incomplete": "length"}


def finish_reason(reason: FinishReason) -> str:
    return _REASONS.get(reason, reason)


class ChatChoice:
    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self.finish_reason: str | None = None

    def feed(self, text: str, reason: FinishReason | None) -> list[dict[str, Any]]:
        """What this text adds to the message; with a reason, it was the last."""
        events = self._parser.feed(text)
        if reason is not None:
            events = [*events, *self._parser.finish()]
        deltas = [delta for event in events if (delta := self._delta(event)) is not None]
        if reason is not None:
            called = self._calls and reason == "stop"
            self.finish_reason = "tool_calls" if called else finish_reason(reason)
        return deltas

    def message(self) -> dict[str, Any]:
        """The whole answer. One that only calls tools has no content."""
        content: str | None = "".join(self._content)
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["content"] = content or None
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return message

    def _delta(self, event: Event) -> dict[str, Any] | None:
        match event:
            case TextDelta(text):
                self._content.append(text)
                return {"content": text}
            case ReasoningDelta(text):
                self._reasoning.append(text)
                return {"reasoning_content": text}
            case ToolCallBegin(index, name, given):
                call = {
                    "id": given or f"call_{uuid4().hex[:24]}",
                    "type": "function",
                    "function": {"name": name, "arguments": ""},
                }
                self._calls[index] = {**call, "function": {"name": name, "arguments": ""}}
                return {"tool_calls": [{"index": index, **call}]}
            case ToolArguments(index, text):
                self._calls[index]["function"]["arguments"] += text
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case ToolCallEnd():
                return None
