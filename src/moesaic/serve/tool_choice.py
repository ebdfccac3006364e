"""What `tool_choice` of a request says: the tools that a model is offered, and if it must call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moesaic.serve.api_error import ApiError, impossible
from moesaic.serve.formats.grammars import Named, Required
from moesaic.serve.schemas import ChatRequest


@dataclass(frozen=True, slots=True)
class ToolChoice:
    demanded: Required | Named | None = None  # None: the model decides whether it calls
    offered: tuple[str, ...] | None = None  # the tools that the prompt has; None: all of them


def tool_choice_of(asked: ChatRequest) -> ToolChoice:
    """Where some tools are allowed and a call is demanded, the grammar allows no others, and the
    prompt is that of other requests with these tools; where the model decides, the prompt has the
    allowed ones alone."""
    parallel = asked.parallel_tool_calls is not False
    match asked.tool_choice:
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice(offered=())
        case "required":
            return ToolChoice(Required(parallel))
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice(Named(name))
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}:
            found = map(_function, tools)
            names = tuple(each for each in found if each is not None)
            if mode == "auto":
                return ToolChoice(offered=names)
            if mode == "required" and names:
                return ToolChoice(Required(parallel, names))
            raise _refused(asked.tool_choice)
    raise _refused(asked.tool_choice)


def _function(tool: object) -> str | None:
    """Its name; None: it is of a service that is not here."""
    match tool:
        case {"type": "function", "function": {"name": str(name)}}:
            return name
        case {"type": "function"}:
            raise impossible("tool_choice allows a function without a name", "tool_choice")
    return None


def _refused(choice: Any) -> ApiError:
    return impossible(
        f"tool_choice is {choice!r}; possible are none, auto, required, "
        '{"type": "function", "function": {"name": ...}}, and {"type": "allowed_tools", '
        '"allowed_tools": {"mode": "auto" or "required", "tools": [functions of the request]}}',
        "tool_choice",
    )


def only(tools: Sequence[dict[str, Any]], names: tuple[str, ...] | None) -> list[dict[str, Any]]:
    """Those of these names."""
    return [each for each in tools if names is None or each["function"]["name"] in names]
