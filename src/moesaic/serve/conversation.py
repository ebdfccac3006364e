"""From the messages and tools of a request to the tokens of a prompt."""

from __future__ import annotations

from typing import Any

import msgspec

from moesaic.models.text.chat_messages import check_messages
from moesaic.models.text.tokenizer import Tokenizer
from moesaic.serve.api_error import impossible
from moesaic.serve.arguments import arguments_object
from moesaic.serve.client_noise import without_accounting
from moesaic.serve.effort import effort_variables
from moesaic.serve.schemas import ChatRequest, ContentPart, Message, TokenizeRequest, Tool, ToolCall
from moesaic.serve.shape import shape
from moesaic.serve.template_rules import rules_of
from moesaic.serve.tool_choice import only, tool_choice_of

NO_IMAGE = "[a part of type {} was left out: this model reads text]"  # in results of tools
_TEXTS = ("text", "input_text", "output_text")


def conversation_tokens(request: ChatRequest | TokenizeRequest, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(conversation_text(request, tokenizer), special=False)


def conversation_text(request: ChatRequest | TokenizeRequest, tokenizer: Tokenizer) -> str:
    """The prompt as the model's chat template writes it. `tool_choice` "none" leaves tools out."""
    given = dict(request.chat_template_kwargs or {})
    if "messages" in given:
        raise impossible("chat_template_kwargs has messages: give them as messages alone")
    effort = request.reasoning_effort if isinstance(request, ChatRequest) else None
    variables = effort_variables(effort, tokenizer) | given
    if tools := tools_of(request):
        variables["tools"] = tools
    messages = [_message(number, message) for number, message in enumerate(request.messages or [])]
    check_messages(messages)
    rules = rules_of(tokenizer)
    messages = shape(messages, rules)
    if not rules.system:
        return tokenizer.chat_text(messages, variables)  # which refuses what would be dropped
    return tokenizer.render_chat(messages, variables=variables)


def tools_of(request: ChatRequest | TokenizeRequest) -> list[dict[str, Any]]:
    """Those that the model is offered."""
    tools = [_tool(number, each) for number, each in enumerate(request.tools or [])]
    if not isinstance(request, ChatRequest):
        return tools
    return only(tools, tool_choice_of(request).offered)


def _message(number: int, message: Message) -> dict[str, Any]:
    content = _text(number, message)
    if content is None and message.role == "assistant":
        content = ""  # it has only thought, or called
    if content and message.role in ("system", "developer"):
        content = without_accounting(content)
    if content is None:
        raise impossible(
            f"messages[{number}] has no content: give it text", f"messages[{number}].content"
        )
    made: dict[str, Any] = {"role": message.role, "content": content}
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            made[name] = value
    if thought := message.thought:
        made["reasoning_content"] = thought
    if message.tool_calls:
        made["tool_calls"] = [_call(each) for each in message.tool_calls]
    return made


def _text(number: int, message: Message) -> str | None:
    if message.content is None or isinstance(message.content, str):
        return message.content
    is_result = message.role == "tool"
    return "".join(_part(number, part, is_result) for part in message.content)


def _part(number: int, part: ContentPart, is_result: bool) -> str:
    """A user can leave an image out; an agent whose tool has read one cannot, and the model is to
    know of it."""
    if part.type == "refusal":
        return part.refusal or ""
    if part.type not in _TEXTS:
        if is_result:
            return NO_IMAGE.format(part.type)
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
    return part.text


def _call(call: ToolCall) -> dict[str, Any]:
    """Templates write arguments as JSON, and so take them as values. Arguments that are no object
    are of an answer that was cut or wrong: the conversation goes on with them as they are."""
    arguments: Any = call.function.arguments
    if isinstance(arguments, str):
        arguments = arguments_object(arguments)
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
