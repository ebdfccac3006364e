"""The bodies of the Responses API. Fields that it has and that are not here are ignored."""

from __future__ import annotations

from typing import Any

import msgspec

Item = dict[str, Any]  # of many types, most of which this server skips: see `to_chat`


class TextFormat(msgspec.Struct):
    type: str
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct):
    format: TextFormat | None = None


class ResponsesTool(msgspec.Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def is_function(self) -> bool:
        """Others belong to services that are not here."""
        return self.type == "function"


class Reasoning(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True):
    input: str | list[Item]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    metadata: dict[str, str] | None = None
    background: bool | None = None
    conversation: str | dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    reasoning: Reasoning | None = None
    user: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # as in this server's chat API

    @property
    def items(self) -> list[Item]:
        if isinstance(self.input, str):
            return [{"type": "message", "role": "user", "content": self.input}]
        return self.input
