"""What an answer consists of, piece by piece: text, reasoning and tool calls. An output parser
makes these events of a model's text, and the endpoints write them in the form of their API."""

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
    index: int  # among the calls of this answer
    name: str
    id: str | None  # None: the model gives none


@dataclass(frozen=True, slots=True)
class ToolArguments:
    index: int
    text: str  # the next part of the call's arguments, which together are JSON


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    index: int


Event = TextDelta | ReasoningDelta | ToolCallBegin | ToolArguments | ToolCallEnd


class OutputParser(Protocol):
    """Reads one answer."""

    def feed(self, text: str) -> list[Event]:
        """The events that this text completes."""

    def finish(self) -> list[Event]:
        """The events at the end of the answer."""
