"""The calls of one answer: their numbers, their arguments, and the tools they may name."""

from __future__ import annotations

import json
from collections.abc import Sequence

from moesaic.serve.events import ToolArguments, ToolCallBegin, ToolCallEnd
from moesaic.serve.formats.schemas import Tool, parameters_of, types_of


class Calls:
    """Makes the events of calls. At most one call is open at a time."""

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self.count = 0  # calls that have begun
        self.is_open = False
        self.just_ended = False  # nothing but white space has come since the last call
        self._schemas = parameters_of(tools)
        self._name = ""
        self._members = 0  # of the open call's object, where it is written member by member

    def begin(self, name: str, id: str | None = None) -> ToolCallBegin:
        assert not self.is_open, "the call before it has ended"
        self.is_open, self._name, self._members = True, name, 0
        self.count += 1
        return ToolCallBegin(self.count - 1, name, id)

    def arguments(self, text: str) -> ToolArguments:
        assert self.is_open, "arguments belong to a call"
        return ToolArguments(self.count - 1, text)

    def end(self) -> ToolCallEnd:
        assert self.is_open, "a call ends once"
        self.is_open, self.just_ended = False, True
        return ToolCallEnd(self.count - 1)

    # For formats that write arguments one by one: the JSON object is made here.

    def types_of(self, argument: str) -> frozenset[str]:
        return types_of(self._schemas.get(self._name, {}), argument)

    def member(self, argument: str, value: str) -> ToolArguments:
        """`value` is JSON, or the beginning of it."""
        opening = ", " if self._members else "{"
        self._members += 1
        return self.arguments(f"{opening}{json.dumps(argument, ensure_ascii=False)}: {value}")

    def close_object(self) -> ToolArguments:
        return self.arguments("}" if self._members else "{}")
