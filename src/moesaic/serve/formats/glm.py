"""GLM-4.5 and later: `<tool_call>NAME<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`,
up to GLM-4.6 with line breaks between the tags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from moesaic.serve.formats.calls import Calls
from moesaic.serve.formats.grammar_text import GrammarText, quoted, sequence
from moesaic.serve.formats.stream import Malformed, Steps, Stream
from moesaic.serve.formats.tagged_arguments import read_value
from moesaic.serve.formats.tool_format import ToolFormat, text_with_calls

_BEGIN, _END = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_NAME = re.compile(r"\s*[^\s<>{}\"]{0,256}\s*")
_ARGUMENT = re.compile(r"[^<>]{0,256}")


def _read_call(stream: Stream, calls: Calls, start: str) -> Steps[None]:
    name = yield from stream.match(_NAME, "<")
    stream.at -= 1
    if not name.strip():
        raise Malformed
    tag = yield from stream.take_first((_KEY, _END))
    yield calls.begin(name.strip())
    while tag == _KEY:
        stream.keep(len(tag))
        argument = yield from stream.match(_ARGUMENT, _KEY_END)
        yield from stream.skip_space()
        yield from stream.take(_VALUE)
        yield from read_value(stream, calls, argument.strip(), (_VALUE_END,))
        stream.keep()
        yield from stream.skip_space()
        tag = yield from stream.take_first((_KEY, _END))
    yield calls.close_object()
    yield calls.end()
    stream.keep()


def _grammar(grammar: GrammarText) -> str:
    line = f"{quoted(chr(10))}?"

    def head(argument: str) -> str:
        key = [grammar.text(_KEY), quoted(argument), grammar.text(_KEY_END)]
        return sequence([line, *key, line, grammar.text(_VALUE)])

    def write(name: str, schema: Mapping[str, Any]) -> str:
        return sequence([quoted(name), grammar.members(schema, head, _VALUE_END)])

    call = [grammar.text(_BEGIN), grammar.each_tool(write), line, grammar.text(_END)]
    return grammar.calls(sequence(call), line)


GLM = ToolFormat(
    "glm",
    text_with_calls((_BEGIN,), _read_call),
    keeps_special=(_BEGIN, _END, _KEY, _KEY_END, _VALUE, _VALUE_END),
    grammar=_grammar,
)
