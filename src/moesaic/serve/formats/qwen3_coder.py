"""Qwen3-Coder, Qwen3.5, Nemotron 3: `<tool_call><function=NAME><parameter=KEY>value</parameter>
</function></tool_call>`. Models may leave out the outer tags, which are optional here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from moesaic.serve.formats.calls import Calls
from moesaic.serve.formats.grammar_text import GrammarText, quoted, sequence
from moesaic.serve.formats.stream import Steps, Stream
from moesaic.serve.formats.tagged_arguments import read_value
from moesaic.serve.formats.tool_format import ToolFormat, text_with_calls

_BEGIN, _END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_NAME = re.compile(r"[^\s<>]{0,256}")
_VALUE_ENDS = ("\n" + _PARAMETER_END, _PARAMETER_END)


def _read_call(stream: Stream, calls: Calls, start: str) -> Steps[None]:
    if start == _BEGIN:
        yield from stream.skip_space()
        yield from stream.take(_FUNCTION)
    name = yield from stream.match(_NAME, ">")
    yield from stream.skip_space()
    tag = yield from stream.take_first((_PARAMETER, _FUNCTION_END, _END))
    yield calls.begin(name)
    while tag == _PARAMETER:
        stream.keep(len(tag))
        argument = yield from stream.match(_NAME, ">")
        yield from stream.take_first(("\n", ""))
        yield from read_value(stream, calls, argument, _VALUE_ENDS)
        stream.keep()
        yield from stream.skip_space()
        tag = yield from stream.take_first((_PARAMETER, _FUNCTION_END, _END))
    yield calls.close_object()
    yield calls.end()
    stream.keep()
    if tag == _FUNCTION_END:
        yield from stream.take_if(_END)


def _grammar(grammar: GrammarText) -> str:
    def write(name: str, schema: Mapping[str, Any]) -> str:
        members = grammar.members(schema, _head, "\n" + _PARAMETER_END, "\n")
        return sequence([quoted(f"\n{_FUNCTION}{name}>\n"), members])

    tail = quoted(f"{_FUNCTION_END}\n")
    call = [grammar.text(_BEGIN), grammar.each_tool(write), tail, grammar.text(_END)]
    return grammar.calls(sequence(call), quoted("\n"))


def _head(argument: str) -> str:
    return quoted(f"{_PARAMETER}{argument}>\n")


QWEN3_CODER = ToolFormat(
    "qwen3-coder",
    text_with_calls((_BEGIN, _FUNCTION), _read_call),
    keeps_special=(_BEGIN, _END),
    grammar=_grammar,
)
