"""A request of the Messages API as one of the chat API: the model's template knows one form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from moesaic.serve.anthropic.schemas import (
    Block,
    CountRequest,
    MessagesRequest,
    MessagesTool,
    OutputConfig,
    Turn,
)
from moesaic.serve.api_error import ApiError, impossible
from moesaic.serve.client_noise import is_accounting
from moesaic.serve.conversation import NO_IMAGE
from moesaic.serve.effort import thinking_variables
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

_OF_USERS = ("text", "tool_result")
_OF_ASSISTANTS = ("text", "thinking", "redacted_thinking", "tool_use")
_THINKING = {"enabled": True, "adaptive": True, "disabled": False}


def chat_request(asked: CountRequest) -> ChatRequest:
    made = ChatRequest(messages=_messages(asked), model=asked.model)
    tools = [_tool(each) for each in asked.tools or [] if _is_function(each)]
    made.tools, made.tool_choice = tools or None, _tool_choice(asked)
    if asked.tool_choice is not None:
        made.parallel_tool_calls = not asked.tool_choice.disable_parallel_tool_use
    if asked.thinking is not None:
        made.chat_template_kwargs = thinking_variables(_thinks(asked.thinking.type))
    config = asked.output_config or OutputConfig()
    made.reasoning_effort = config.effort
    if config.format is not None:
        schema = JsonSchema(config.format.schema)
        made.response_format = ResponseFormat(config.format.type, schema)
    if isinstance(asked, MessagesRequest):
        made.max_tokens = asked.max_tokens
        made.stop = asked.stop_sequences
        made.temperature, made.top_p, made.top_k = asked.temperature, asked.top_p, asked.top_k
        made.stream = asked.stream
    return made


def _messages(asked: CountRequest) -> list[Message]:
    if not asked.messages:
        raise impossible("messages is empty: a conversation needs at least one", "messages")
    made: list[Message] = []
    if asked.system is not None and (text := _system(asked.system)):
        made.append(Message("system", text))
    names: dict[str, str] = {}  # of the tools that were called
    for number, turn in enumerate(asked.messages):
        made += _turn(number, turn, names)
    return made


def _system(system: str | Sequence[Block]) -> str:
    if isinstance(system, str):
        return system
    texts = [_text(each, "system") for each in system]
    return "\n\n".join(text for text in texts if not is_accounting(text))


def _turn(number: int, turn: Turn, names: dict[str, str]) -> Iterator[Message]:
    place = f"messages[{number}]"
    if turn.role not in ("user", "assistant", "system"):
        raise impossible(
            f"{place} has the role {turn.role!r}; possible are user, assistant and system", place
        )
    if isinstance(turn.content, str):
        yield Message(turn.role, turn.content)
    elif turn.role == "assistant":
        yield _assistant(place, turn.content, names)
    else:
        yield from _user(place, turn, names)


def _assistant(place: str, blocks: Sequence[Block], names: dict[str, str]) -> Message:
    _check_types(place, blocks, _OF_ASSISTANTS)
    calls = [_call(place, each) for each in blocks if each.type == "tool_use"]
    for call in calls:
        names[call.id or ""] = call.function.name
    text = "".join(_text(each, place) for each in blocks if each.type == "text")
    thought = "".join(each.thinking or "" for each in blocks if each.type == "thinking")
    return Message("assistant", text, tool_calls=calls or None, reasoning_content=thought or None)


def _user(place: str, turn: Turn, names: dict[str, str]) -> Iterator[Message]:
    """Results of tools are messages of their own, in the order given."""
    assert not isinstance(turn.content, str), "blocks"
    _check_types(place, turn.content, _OF_USERS)
    said: list[str] = []
    for block in turn.content:
        if block.type == "text":
            said.append(_text(block, place))
            continue
        if said:
            yield Message(turn.role, "".join(said))
            said = []
        if block.tool_use_id is None:
            raise impossible(f"{place} has a tool_result without tool_use_id", place)
        yield Message(
            "tool",
            _result(block, place),
            name=names.get(block.tool_use_id),
            tool_call_id=block.tool_use_id,
        )
    if said:
        yield Message(turn.role, "".join(said))


def _check_types(place: str, blocks: Sequence[Block], known: Sequence[str]) -> None:
    for block in blocks:
        if block.type not in known:
            raise impossible(
                f"{place} has a block of type {block.type!r}; this model reads text: possible "
                f"here are {', '.join(known)}",
                place,
            )


def _text(block: Block, place: str) -> str:
    if block.type != "text" or block.text is None:
        raise impossible(
            f"{place} has a block of type {block.type!r} where a text is needed: give "
            '{"type": "text", "text": "..."}',
            place,
        )
    return block.text


def _call(place: str, block: Block) -> ToolCall:
    if block.id is None or block.name is None:
        raise impossible(f"{place} has a tool_use without id or name", place)
    return ToolCall(CalledFunction(block.name, block.input or {}), block.id, "function")


def _result(block: Block, place: str) -> str:
    content = block.content
    if isinstance(content, list):
        content = "\n".join(
            _text(each, f"the tool_result of {place}")
            if each.type == "text"
            else NO_IMAGE.format(each.type)
            for each in content
        )
    if block.is_error:
        return f"Error: {content or 'the tool failed'}"
    return content or ""


def _is_function(tool: MessagesTool) -> bool:
    """Others are run by a service that is not here (a search of the web): the model is not told of
    them."""
    return tool.type in (None, "custom")


def _tool(tool: MessagesTool) -> Tool:
    if tool.name is None:
        raise impossible("tools has one without a name", "tools")
    function = FunctionDefinition(tool.name, tool.description, tool.input_schema)
    return Tool("function", function)


def _tool_choice(asked: CountRequest) -> str | dict[str, Any] | None:
    choice = asked.tool_choice
    if choice is None:
        return None
    match choice.type:
        case "auto" | "none":
            return choice.type
        case "any":
            return "required"
        case "tool" if choice.name is not None:
            return {"type": "function", "function": {"name": choice.name}}
    raise _unknown_choice(choice.type)


def _unknown_choice(kind: str) -> ApiError:
    return impossible(
        f"tool_choice has the type {kind!r}; possible are auto, any, none, and tool with a name",
        "tool_choice",
    )


def _thinks(kind: str) -> bool:
    if kind not in _THINKING:
        raise impossible(
            f"thinking has the type {kind!r}; possible are {', '.join(_THINKING)}", "thinking"
        )
    return _THINKING[kind]
