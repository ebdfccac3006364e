"""gpt-oss: messages with channels. `analysis` is reasoning, `final` and what has no recipient are
text, a message to a recipient is a call: `to=functions.NAME` before or after the channel.

The prompt ends with `<|start|>assistant`, so an answer begins in the middle of a message's head.
What has no such head is text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from moesaic.serve.events import Event, ReasoningDelta, TextDelta
from moesaic.serve.formats.calls import Calls
from moesaic.serve.formats.grammar_text import GrammarText, quoted, sequence
from moesaic.serve.formats.json_calls import read_arguments
from moesaic.serve.formats.stream import Malformed, Steps, Stream
from moesaic.serve.formats.tool_format import ToolFormat

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_CONSTRAIN = "<|constrain|>"
_END, _CALL, _RETURN = "<|end|>", "<|call|>", "<|return|>"
_ENDS = (_END, _CALL, _RETURN)
_TO = r"(?: ?to=[^\s<>]{1,256})"
_HEAD = re.compile(r"[^\n]{0,512}")  # a head and every beginning of one
_PARTS = re.compile(
    rf"(?:<\|start\|>)?(?:assistant)?({_TO})?(?:<\|channel\|>(\w+))?({_TO})?"
    r"(?: ?(?:<\|constrain\|>)?\w+)?\s*"
)
_HEAD_STARTS = (_START, _CHANNEL, " to=", "to=", _MESSAGE)


def _read(stream: Stream, calls: Calls) -> Steps[None]:
    while not (yield from stream.is_at_end()):
        stream.keep()
        try:
            yield from _read_message(stream, calls)
        except Malformed:
            stream.rewind()
            if calls.is_open:
                yield calls.end()
            first = yield from stream.take_one()
            if first:
                yield TextDelta(first)
            yield from stream.pass_until((_START, _CHANNEL), TextDelta)


def _read_message(stream: Stream, calls: Calls) -> Steps[None]:
    yield from stream.take_first(_HEAD_STARTS)
    stream.rewind()
    head = _PARTS.fullmatch((yield from stream.match(_HEAD, _MESSAGE)))
    if not head:
        raise Malformed
    before, channel, after = head.groups()
    recipient = before or after
    if not recipient:
        stream.release()
        yield from _pass_content(stream, ReasoningDelta if channel == "analysis" else TextDelta)
        return
    name = recipient.strip().removeprefix("to=").removeprefix("functions.")
    yield from stream.skip_space()
    yield from read_arguments(stream, calls, name)
    for end in _ENDS:
        if (yield from stream.take_if(end)):
            break


def _pass_content(stream: Stream, event: Callable[[str], Event]) -> Steps[None]:
    """Up to the message's end, or to the next message."""
    found = yield from stream.pass_until((*_ENDS, _START), event)
    if found in _ENDS:
        yield from stream.take(found)


def _grammar(grammar: GrammarText) -> str:
    """Reasoning if the model wants it, and one call, which ends the answer. Tokens that end a text
    are no part of it."""
    reasoning = [
        grammar.text(f"{_CHANNEL}analysis{_MESSAGE}"),
        grammar.free_text(_END, f"{_START}assistant"),
    ]

    def write(name: str, schema: Mapping[str, Any]) -> str:
        recipient, kind = f" to=functions.{name}", f"({grammar.text(_CONSTRAIN)})? {quoted('json')}"
        first = [grammar.text(f"{recipient}{_CHANNEL}commentary "), kind]
        last = [grammar.text(f"{_CHANNEL}commentary{recipient} "), kind]
        heads = f"({sequence(first)} | {sequence(last)})"
        return sequence([heads, grammar.text(_MESSAGE), grammar.json(schema)])

    return f"({sequence(reasoning)})? {grammar.each_tool(write)}"


HARMONY = ToolFormat(
    "harmony",
    _read,
    keeps_special=(_START, _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS),
    grammar=_grammar,
    reasons=True,
)
