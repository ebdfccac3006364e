"""Qwen2.5, Qwen3 and Hermes: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

from moesaic.serve.formats.calls import Calls
from moesaic.serve.formats.grammar_text import GrammarText, quoted, sequence
from moesaic.serve.formats.json_calls import read_call
from moesaic.serve.formats.stream import Steps, Stream
from moesaic.serve.formats.tool_format import ToolFormat, text_with_calls

_BEGIN, _END = "<tool_call>", "</tool_call>"


def _read_call(stream: Stream, calls: Calls, start: str) -> Steps[None]:
    yield from stream.skip_space()
    yield from read_call(stream, calls)
    yield from stream.take_if(_END)


def _grammar(grammar: GrammarText) -> str:
    line = quoted("\n")
    call = sequence(
        [grammar.text(_BEGIN), line, grammar.each_json_call(), line, grammar.text(_END)]
    )
    return grammar.calls(call, line)


HERMES = ToolFormat(
    "hermes",
    text_with_calls((_BEGIN,), _read_call),
    keeps_special=(_BEGIN, _END),
    grammar=_grammar,
)
