"""No tool calls: all that a model writes is text."""

from __future__ import annotations

from moesaic.serve.events import TextDelta
from moesaic.serve.formats.calls import Calls
from moesaic.serve.formats.stream import Steps, Stream
from moesaic.serve.formats.tool_format import ToolFormat


def _read(stream: Stream, calls: Calls) -> Steps[None]:
    yield from stream.pass_until((), TextDelta)


PLAIN = ToolFormat("plain", _read)
