"""A request of the Responses API as one of the chat API: the model's template knows one form.

Messages, calls of functions, their outputs and reasoning are what a template can show. Items and
tools of other types belong to services that are not here, and are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moesaic.serve.api_error import impossible
from moesaic.serve.conversation import NO_IMAGE
from moesaic.serve.responses.schemas import Item, ResponsesRequest, ResponsesTool
from moesaic.serve.schemas import (
    CalledFunction,
    ChatRequest,
    FunctionDefinition,
    JsonSchema,
    Message,
    ResponseFormat,
    Tool,
    ToolCall,
)

_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_ROLES = ("user", "assistant", "system", "developer")


def chat_request(asked: ResponsesRequest, earlier: Sequence[Item]) -> ChatRequest:
    """`earlier` items of the conversation come before the request's own."""
    messages = _Messages()
    for number, item in enumerate([*earlier, *asked.items]):
        messages.add(f"input[{number - len(earlier)}]", item)
    made = messages.all()
    if asked.instructions:
        made.insert(0, Message("system", asked.instructions))
    chat = ChatRequest(messages=made, model=asked.model)
    chat.max_tokens = asked.max_output_tokens
    chat.temperature, chat.top_p = asked.temperature, asked.top_p
    chat.reasoning_effort = None if asked.reasoning is None else asked.reasoning.effort
    chat.chat_template_kwargs, chat.stream = asked.chat_template_kwargs, asked.stream
    tools = [_tool(each) for each in asked.tools or [] if each.is_function]
    chat.tools, chat.tool_choice = tools or None, _tool_choice(asked.tool_choice)
    chat.parallel_tool_calls = asked.parallel_tool_calls
    if asked.text is not None and asked.text.format is not None:
        form = asked.text.format
        chat.response_format = ResponseFormat(form.type, JsonSchema(form.schema, form.name))
    return chat


class _Messages:
    """What an assistant has thought, said and called in a row is one message."""

    def __init__(self) -> None:
        self._made: list[Message] = []
        self._names: dict[str, str] = {}  # of the functions that were called

    def all(self) -> list[Message]:
        return self._made

    def add(self, place: str, item: Item) -> None:
        match item.get("type", "message"):
            case "message":
                self._message(place, item)
            case "reasoning":
                thought = _text(place, item.get("content") or item.get("summary") or "")
                answer = self._answer(begins=True)
                answer.reasoning_content = (answer.reasoning_content or "") + thought
            case "function_call":
                self._call(place, item)
            case "function_call_output":
                call_id = _field(place, item, "call_id")
                text = _text(place, item.get("output", ""), is_result=True)
                name = self._names.get(call_id)
                self._made.append(Message("tool", text, name=name, tool_call_id=call_id))
            case _:
                pass  # of a service that is not here

    def _message(self, place: str, item: Item) -> None:
        role, text = _field(place, item, "role"), _text(place, item.get("content", ""))
        if role not in _ROLES:
            raise impossible(
                f"{place} has the role {role!r}; possible are {', '.join(_ROLES)}", "input"
            )
        if role == "assistant":
            answer = self._answer(begins=True)
            answer.content = f"{answer.content or ''}{text}"
        else:
            self._made.append(Message(role, text))

    def _call(self, place: str, item: Item) -> None:
        name, call_id = _field(place, item, "name"), _field(place, item, "call_id")
        self._names[call_id] = name
        answer = self._answer(begins=False)
        call = ToolCall(CalledFunction(name, item.get("arguments") or "{}"), call_id, "function")
        answer.tool_calls = [*(answer.tool_calls or []), call]

    def _answer(self, begins: bool) -> Message:
        """The assistant's message that this is a part of; text and thoughts do not follow calls."""
        last = self._made[-1] if self._made else None
        if last is None or last.role != "assistant" or (begins and last.tool_calls):
            last = Message("assistant", "")
            self._made.append(last)
        return last


def _field(place: str, item: Item, name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise impossible(f"{place} needs {name}, a text", "input")
    return value


def _text(place: str, content: object, is_result: bool = False) -> str:
    """Of a tool's result, what is no text is left out, and the model reads that it was."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise impossible(f"{place} has no text: give a text or a list of parts", "input")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal" and isinstance(part.get("refusal"), str):
            texts.append(part["refusal"])
            continue
        if is_result and isinstance(kind, str) and kind not in _TEXTS:
            texts.append(NO_IMAGE.format(kind))
            continue
        if kind not in _TEXTS or not isinstance(part.get("text"), str):
            raise impossible(
                f"{place} has a part of type {kind!r}; this model reads text: give parts like "
                '{"type": "input_text", "text": "..."}',
                "input",
            )
        texts.append(part["text"])
    return "".join(texts)


def _tool(tool: ResponsesTool) -> Tool:
    if tool.name is None:
        raise impossible("tools has a function without a name", "tools")
    function = FunctionDefinition(tool.name, tool.description, tool.parameters, tool.strict)
    return Tool("function", function)


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    match choice:
        case None | str():
            return choice
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case {"type": "allowed_tools", "mode": mode, "tools": list(tools)}:
            allowed = {"mode": mode, "tools": [_allowed(each) for each in tools]}
            return {"type": "allowed_tools", "allowed_tools": allowed}
    raise impossible(
        f"tool_choice is {choice!r}; possible are none, auto, required, a function with a name, "
        "and allowed_tools with a mode (auto or required) and tools",
        "tool_choice",
    )


def _allowed(tool: object) -> object:
    """In the form of the chat API."""
    match tool:
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
    return tool
