"""From the messages and tools of a request to the tokens of a prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from moesaic.models.text.tokenizer import Tokenizer
from moesaic.serve.api_error import impossible
from moesaic.serve.schemas import ChatRequest, ContentPart, Message, TokenizeRequest, Tool, ToolCall


def conversation_tokens(request: ChatRequest | TokenizeRequest, tokenizer: Tokenizer) -> list[int]:
    """The prompt as the model's chat template writes it. `tool_choice` "none" leaves tools out."""
    variables = dict(request.chat_template_kwargs or {})
    if "messages" in variables:
        raise impossible("chat_template_kwargs has messages: give them as messages alone")
    if tools := tools_of(request):
        variables["tools"] = tools
    developer = "developer" if tokenizer.names_in_template("developer") else "system"
    messages = [
        _message(number, message, developer)
        for number, message in enumerate(request.messages or [])
    ]
    return tokenizer.encode_chat(messages, variables)


def tools_of(request: ChatRequest | TokenizeRequest) -> list[dict[str, Any]]:
    """Those that the model may call."""
    if isinstance(request, ChatRequest) and request.tool_choice == "none":
        return []
    return [_tool(number, each) for number, each in enumerate(request.tools or [])]


def _message(number: int, message: Message, developer: str) -> dict[str, Any]:
    role = developer if message.role == "developer" else message.role
    content = _text(number, message.content)
    if content is None and not message.tool_calls:
        raise impossible(
            f"messages[{number}] has no content: give it text", f"messages[{number}].content"
        )
    made: dict[str, Any] = {"role": role, "content": content}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            made[name] = value
    if message.tool_calls:
        made["tool_calls"] = [_call(number, each) for each in message.tool_calls]
    return made


def _text(number: int, content: str | Sequence[ContentPart] | None) -> str | None:
    if content is None or isinstance(content, str):
        return content
    for part in content:
        if part.type not in ("text", "input_text", "output_text"):
            raise impossible(
                f"messages[{number}] has a part of type {part.type!r}; this model reads text: give "
                "parts of type text",
                f"messages[{number}].content",
            )
        if part.text is None:
            raise impossible(
                f"messages[{number}] has a part of type text without a text",
                f"messages[{number}].content",
            )
    return "".join(part.text or "" for part in content)


def _call(number: int, call: ToolCall) -> dict[str, Any]:
    """Templates write arguments as JSON, and so take them as values."""
    arguments = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise impossible(
                f"the arguments of {call.function.name} in messages[{number}] are not JSON: "
                f"{error}",
                f"messages[{number}].tool_calls",
            ) from None
    function = {"name": call.function.name, "arguments": arguments or {}}
    return {"type": "function", "id": call.id, "function": function}


def _tool(number: int, tool: Tool) -> dict[str, Any]:
    if tool.type != "function" or tool.function is None:
        raise impossible(
            f"tools[{number}] is of type {tool.type!r}; a tool is a function with a name, as in "
            '{"type": "function", "function": {"name": "weather", "parameters": {...}}}',
            f"tools[{number}]",
        )
    return {"type": "function", "function": msgspec.to_builtins(tool.function)}
