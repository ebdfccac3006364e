"""The output of one response in items: events while it is written, and the items that they make
together."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from moesaic.serve.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegin,
    ToolCallEnd,
)

_FIELDS = {"message": "output_text", "reasoning": "reasoning_text"}


class Output:
    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._of_call: dict[int, int] = {}  # item of a call, by its index
        self._open: dict[str, Any] | None = None  # the last item, while it is written

    def add(self, event: Event) -> list[dict[str, Any]]:
        """The events of the stream that this one of the answer makes."""
        match event:
            case TextDelta(text):
                return self._write("message", text)
            case ReasoningDelta(text):
                return self._write("reasoning", text)
            case ToolCallBegin(index, name, given):
                self._of_call[index] = len(self.items)
                call_id = given or f"call_{uuid4().hex[:24]}"
                return self._begin("function_call", "fc", call_id=call_id, name=name, arguments="")
            case ToolArguments(index, text):
                number = self._of_call[index]
                item = self.items[number]
                item["arguments"] += text
                what = "response.function_call_arguments.delta"
                return [{"type": what, **_at(item, number), "delta": text}]
            case ToolCallEnd():
                return self.end()

    def end(self, status: str = "completed") -> list[dict[str, Any]]:
        """No more is added to the last item."""
        item, self._open = self._open, None
        if item is None:
            return []
        item["status"] = status
        number = len(self.items) - 1
        at, made = _at(item, number), list[dict[str, Any]]()
        if item["type"] == "function_call":
            what = "response.function_call_arguments.done"
            made.append({"type": what, **at, "arguments": item["arguments"]})
        else:
            field, (part,) = _FIELDS[item["type"]], item["content"]
            done = {"type": f"response.{field}.done", **at, "content_index": 0}
            done |= {"text": part["text"]} | ({"logprobs": []} if field == "output_text" else {})
            ended = {"type": "response.content_part.done", **at, "content_index": 0, "part": part}
            made += [done, ended]
        return [*made, _item_event("done", item, number)]

    def _write(self, kind: str, text: str) -> list[dict[str, Any]]:
        field, made = _FIELDS[kind], list[dict[str, Any]]()
        if self._open is None or self._open["type"] != kind:
            part: dict[str, Any] = {"type": field, "text": ""}
            if kind == "message":
                part |= {"annotations": [], "logprobs": []}
                made = self._begin(kind, "msg", role="assistant", content=[])
            else:
                made = self._begin(kind, "rs", summary=[], content=[])
            added = {"type": "response.content_part.added", "content_index": 0, "part": dict(part)}
            made.append(added | _at(self.items[-1], len(self.items) - 1))
            self.items[-1]["content"].append(part)
        item = self.items[-1]
        item["content"][0]["text"] += text
        delta = {"type": f"response.{field}.delta", "content_index": 0, "delta": text}
        delta |= _at(item, len(self.items) - 1) | ({"logprobs": []} if kind == "message" else {})
        return [*made, delta]

    def _begin(self, kind: str, prefix: str, **fields: Any) -> list[dict[str, Any]]:
        ended = self.end()
        item = {"id": f"{prefix}_{uuid4().hex}", "type": kind, "status": "in_progress", **fields}
        self.items.append(item)
        self._open = item
        return [*ended, _item_event("added", item, len(self.items) - 1)]


def _at(item: dict[str, Any], number: int) -> dict[str, Any]:
    return {"item_id": item["id"], "output_index": number}


def _item_event(what: str, item: dict[str, Any], number: int) -> dict[str, Any]:
    """With the item as it is now."""
    now = item | ({"content": list(item["content"])} if "content" in item else {})
    return {"type": f"response.output_item.{what}", "output_index": number, "item": now}
