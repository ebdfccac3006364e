"""MiniMax-M1: `<tool_calls>` with one JSON object per line, each a call."""

from __future__ import annotations

from moesaic.serve.formats.calls import Calls
from moesaic.serve.formats.grammar_text import GrammarText, quoted, sequence
from moesaic.serve.formats.json_calls import read_call
from moesaic.serve.formats.stream import Steps, Stream
from moesaic.serve.formats.tool_format import ToolFormat, text_with_calls

_BEGIN, _END = "<tool_calls>", "</tool_calls>"


def _read_calls(stream: Stream, calls: Calls, start: str) -> Steps[None]:
    yield from stream.skip_space()
    while True:
        yield from read_call(stream, calls)
        stream.keep()
        if (yield from stream.take_if(_END)):
            return
        yield from stream.skip_space()
        if (yield from stream.is_at_end()):
            return


def _grammar(grammar: GrammarText) -> str:
    line = quoted("\n")
    several = grammar.calls(grammar.each_json_call(), line)
    return sequence([grammar.text(_BEGIN), line, several, line, grammar.text(_END)])


MINIMAX_M1 = ToolFormat(
    "minimax-m1",
    text_with_calls((_BEGIN,), _read_calls),
    keeps_special=(_BEGIN, _END),
    grammar=_grammar,
)
