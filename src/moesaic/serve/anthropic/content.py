"""The content of one answer in blocks: events while it is written, and the blocks that they
make together."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from moesaic.serve.arguments import arguments_object
from moesaic.serve.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegin,
    ToolCallEnd,
)


class Content:
    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._arguments: dict[int, list[str]] = {}  # by block
        self._of_call: dict[int, int] = {}  # block of a call, by its index
        self._is_open = False

    @property
    def calls(self) -> bool:
        return bool(self._of_call)

    def add(self, event: Event) -> list[dict[str, Any]]:
        """The events of the stream that this one of the answer makes."""
        match event:
            case TextDelta(text):
                made = self._into("text", {"type": "text", "text": ""})
                self._blocks[-1]["text"] += text
                return [*made, self._delta({"type": "text_delta", "text": text})]
            case ReasoningDelta(text):
                new = {"type": "thinking", "thinking": "", "signature": ""}
                made = self._into("thinking", new)
                self._blocks[-1]["thinking"] += text
                return [*made, self._delta({"type": "thinking_delta", "thinking": text})]
            case ToolCallBegin(index, name, given):
                self._of_call[index] = len(self._blocks)
                self._arguments[len(self._blocks)] = []
                new_id = given or f"toolu_{uuid4().hex[:24]}"
                return self._begin({"type": "tool_use", "id": new_id, "name": name, "input": {}})
            case ToolArguments(index, text):
                block = self._of_call[index]
                self._arguments[block].append(text)
                return [self._delta({"type": "input_json_delta", "partial_json": text}, block)]
            case ToolCallEnd():
                return self.end()

    def end(self) -> list[dict[str, Any]]:
        """No more is added to the last block."""
        if not self._is_open:
            return []
        self._is_open = False
        return [{"type": "content_block_stop", "index": len(self._blocks) - 1}]

    def blocks(self) -> list[dict[str, Any]]:
        """The whole answer."""
        return [
            block | {"input": arguments_object("".join(self._arguments[number]))}
            if number in self._arguments
            else block
            for number, block in enumerate(self._blocks)
        ]

    def _into(self, kind: str, new: dict[str, Any]) -> list[dict[str, Any]]:
        if self._is_open and self._blocks[-1]["type"] == kind:
            return []
        return self._begin(new)

    def _begin(self, block: dict[str, Any]) -> list[dict[str, Any]]:
        ended = self.end()
        self._blocks.append(block)
        self._is_open = True
        index = len(self._blocks) - 1
        begun = {"type": "content_block_start", "index": index, "content_block": dict(block)}
        return [*ended, begun]

    def _delta(self, delta: dict[str, Any], block: int | None = None) -> dict[str, Any]:
        index = len(self._blocks) - 1 if block is None else block
        return {"type": "content_block_delta", "index": index, "delta": delta}
