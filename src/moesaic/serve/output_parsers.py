"""Which parser reads an answer: the one place where a model's output format is chosen."""

from __future__ import annotations

from moesaic.serve.events import Event, OutputParser, TextDelta
from moesaic.serve.schemas import ChatRequest


class PlainText:
    """Passes the model's text on as it is."""

    def feed(self, text: str) -> list[Event]:
        return [TextDelta(text)] if text else []

    def finish(self) -> list[Event]:
        return []


def output_parser(request: ChatRequest) -> OutputParser:
    """A parser for one answer to this request."""
    return PlainText()
