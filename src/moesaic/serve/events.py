"""What a model's answer consists of, in the order in which it was written.

`ToolArguments` are fragments of the JSON object of a call's arguments. Together they are valid JSON
if the model has finished the call; what happens otherwise is described in docs/tool-formats.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegin:
    index: int  # from 0, in the order of the calls of one answer
    name: str
    id: str | None = None  # as the model wrote it; None where its format has none


@dataclass(frozen=True, slots=True)
class ToolArguments:
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    index: int


Event = TextDelta | ReasoningDelta | ToolCallBegin | ToolArguments | ToolCallEnd


class OutputParser(Protocol):
    """Reads one answer. However the text is cut into pieces, the same events result, but for the
    lengths of fragments. No text makes a parser raise an error."""

    def feed(self, text: str) -> list[Event]:
        """The events that are certain since the last call, perhaps none."""
        ...

    def finish(self) -> list[Event]:
        """The rest, now that the answer has ended. Nothing may be fed afterwards."""
        ...
