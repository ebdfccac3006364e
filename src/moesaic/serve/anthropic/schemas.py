"""The bodies of the Messages API. Fields that it has and that are not here are ignored."""

from __future__ import annotations

from typing import Any

import msgspec


class Block(msgspec.Struct):
    """A part of a message; which fields it has follows from its type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None  # of a tool's result
    is_error: bool | None = None


class Turn(msgspec.Struct):
    role: str
    content: str | list[Block]


class MessagesTool(msgspec.Struct):
    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    type: str


class OutputFormat(msgspec.Struct):
    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct):
    format: OutputFormat | None = None
    effort: str | None = None


class Metadata(msgspec.Struct):
    user_id: str | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """What a prompt is made of."""

    messages: list[Turn]
    model: str | None = None
    system: str | list[Block] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountRequest, kw_only=True):
    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
