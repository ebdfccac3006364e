"""Mistral: `[TOOL_CALLS]` and a JSON list of calls, or, from the eleventh version of its tokenizer
on, `[TOOL_CALLS]NAME[ARGS]{...}` for every call, perhaps with `[CALL_ID]id` after the name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from moesaic.serve.formats.calls import Calls
from moesaic.serve.formats.grammar_text import GrammarText, quoted, sequence
from moesaic.serve.formats.json_calls import read_arguments, read_call
from moesaic.serve.formats.stream import Malformed, Steps, Stream
from moesaic.serve.formats.tool_format import ToolFormat, text_with_calls

_CALLS, _ARGUMENTS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_HEAD = re.compile(r"[^\s{}\"<>]{0,256}\s*")
_NAMED = re.compile(r"([^\[\]\s]+)(?:\[CALL_ID\]([^\[\]\s]+))?(?:\[ARGS\])?\s*")


def _read_calls(stream: Stream, calls: Calls, start: str) -> Steps[None]:
    yield from stream.skip_space()
    if (yield from stream.begins("[")):
        yield from _read_list(stream, calls)
    else:
        yield from _read_named(stream, calls)


def _read_list(stream: Stream, calls: Calls) -> Steps[None]:
    yield from stream.take("[")
    while True:
        yield from stream.skip_space()
        yield from read_call(stream, calls)
        stream.keep()
        if not (yield from stream.take_if(",")):
            break
    yield from stream.take_if("]")


def _read_named(stream: Stream, calls: Calls) -> Steps[None]:
    """The arguments' marker may be missing, where special tokens were left out of the text."""
    head = _NAMED.fullmatch((yield from stream.match(_HEAD, "{")))
    stream.at -= 1
    if not head:
        raise Malformed
    yield from read_arguments(stream, calls, head.group(1), head.group(2))


def _list_grammar(grammar: GrammarText) -> str:
    id = f'({quoted(", ")} {quoted(chr(34) + "id" + chr(34) + ": ")} /"[a-zA-Z0-9]{{9}}"/)?'
    several = grammar.calls(grammar.each_json_call(further=id), quoted(", "))
    return sequence([grammar.text(_CALLS), quoted("["), several, quoted("]")])


def _named_grammar(grammar: GrammarText) -> str:
    def write(name: str, schema: Mapping[str, Any]) -> str:
        id = f"({grammar.text(_ID)} /[a-zA-Z0-9]{{9}}/)?"
        return sequence([quoted(name), id, grammar.text(_ARGUMENTS), grammar.json(schema)])

    return grammar.calls(sequence([grammar.text(_CALLS), grammar.each_tool(write)]))


_READ = text_with_calls((_CALLS,), _read_calls)
_SPECIAL = (_CALLS, _ARGUMENTS, _ID)

MISTRAL = ToolFormat("mistral", _READ, keeps_special=_SPECIAL, grammar=_list_grammar)
MISTRAL_V11 = ToolFormat("mistral-v11", _READ, keeps_special=_SPECIAL, grammar=_named_grammar)
