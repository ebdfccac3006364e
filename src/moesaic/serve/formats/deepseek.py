"""DeepSeek-V3, R1 and V3.1: sections of calls between tokens with fullwidth bars.

V3 and R1 write `function<sep>NAME`, a line break and the arguments in a fenced block; V3.1 writes
`NAME<sep>{...}`. Either is read, whichever of the two names was chosen; they differ in what a
grammar demands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from moesaic.serve.formats.calls import Calls
from moesaic.serve.formats.grammar_text import GrammarText, quoted, sequence
from moesaic.serve.formats.json_calls import read_arguments
from moesaic.serve.formats.stream import Malformed, Steps, Stream
from moesaic.serve.formats.tool_format import ToolFormat, WriteCalls, text_with_calls

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_NAME = re.compile(r"\s*[^\s<>{}]{0,256}\s*")
_KIND = "function"  # V3 states the kind of every tool
_FENCE, _FENCE_END = "```json\n", "\n```"


def _read_calls(stream: Stream, calls: Calls, start: str) -> Steps[None]:
    if start == _CALLS:
        yield from stream.skip_space()
        yield from stream.take(_CALL)
    while True:
        yield from _read_one(stream, calls)
        if not (yield from stream.take_if(_CALL)):
            break
    yield from stream.take_if(_CALLS_END)


def _read_one(stream: Stream, calls: Calls) -> Steps[None]:
    name = yield from stream.match(_NAME, _SEPARATOR)
    yield from stream.skip_space()
    fenced = False
    if not (yield from stream.begins("{")):
        if name.strip() != _KIND:
            raise Malformed
        name = yield from stream.match(_NAME, "\n")
        yield from stream.skip_space()
        fenced = yield from stream.take_if("```json")
        yield from stream.skip_space()
    yield from read_arguments(stream, calls, name.strip())
    if fenced:
        yield from stream.take_if("```")
    yield from stream.take_if(_CALL_END)
    stream.keep()


def _grammar(head: str, separator: str, tail: str, between: str) -> WriteCalls:
    """`head` and `separator` are what stands before and after the name."""

    def write_calls(grammar: GrammarText) -> str:
        def write(name: str, schema: Mapping[str, Any]) -> str:
            before = [grammar.text(_CALL), quoted(head) if head else ""]
            middle = [grammar.text(_SEPARATOR)] if head else []
            after = [quoted(name), quoted(separator) if head else grammar.text(_SEPARATOR)]
            end = [grammar.json(schema), quoted(tail) if tail else "", grammar.text(_CALL_END)]
            return sequence([*before, *middle, *after, *end])

        several = grammar.calls(grammar.each_tool(write), quoted(between) if between else "")
        return sequence([grammar.text(_CALLS), several, grammar.text(_CALLS_END)])

    return write_calls


_READ = text_with_calls((_CALLS, _CALL), _read_calls)
_SPECIAL = (_CALLS, _CALLS_END, _CALL, _CALL_END, _SEPARATOR)

DEEPSEEK_V3 = ToolFormat(
    "deepseek-v3",
    _READ,
    keeps_special=_SPECIAL,
    ends_reasoning=(_CALLS,),
    grammar=_grammar(_KIND, f"\n{_FENCE}", _FENCE_END, "\n"),
)
DEEPSEEK_V3_1 = ToolFormat(
    "deepseek-v3.1",
    _READ,
    keeps_special=_SPECIAL,
    ends_reasoning=(_CALLS,),
    grammar=_grammar("", "", "", ""),
)
