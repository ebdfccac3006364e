"""Kimi K2: a section of calls, each with an id that holds the name: `functions.NAME:0`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from moesaic.serve.formats.calls import Calls
from moesaic.serve.formats.grammar_text import GrammarText, quoted, sequence
from moesaic.serve.formats.json_calls import read_arguments
from moesaic.serve.formats.stream import Steps, Stream
from moesaic.serve.formats.tool_format import ToolFormat, text_with_calls

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"
_ID = re.compile(r"\s*[^\s<>{}]{0,256}\s*")
_NUMBER = re.compile(r":\d+$")


def _read_calls(stream: Stream, calls: Calls, start: str) -> Steps[None]:
    if start == _SECTION:
        yield from stream.skip_space()
        yield from stream.take(_CALL)
    while True:
        id = (yield from stream.match(_ID, _ARGUMENTS)).strip()
        name = _NUMBER.sub("", id).removeprefix("functions.")
        yield from stream.skip_space()
        yield from read_arguments(stream, calls, name, id)
        yield from stream.take_if(_CALL_END)
        stream.keep()
        if not (yield from stream.take_if(_CALL)):
            break
    yield from stream.take_if(_SECTION_END)


def _grammar(grammar: GrammarText) -> str:
    def write(name: str, schema: Mapping[str, Any]) -> str:
        head = [grammar.text(_CALL), quoted(f"functions.{name}:"), "/[0-9]{1,4}/"]
        tail = [grammar.text(_ARGUMENTS), grammar.json(schema), grammar.text(_CALL_END)]
        return sequence([*head, *tail])

    several = grammar.calls(grammar.each_tool(write))
    return sequence([grammar.text(_SECTION), several, grammar.text(_SECTION_END)])


KIMI_K2 = ToolFormat(
    "kimi-k2",
    text_with_calls((_SECTION, _CALL), _read_calls),
    keeps_special=(_SECTION, _SECTION_END, _CALL, _CALL_END, _ARGUMENTS),
    ends_reasoning=(_SECTION,),
    grammar=_grammar,
)
