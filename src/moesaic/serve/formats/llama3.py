"""Llama 3.1 to 3.3: an answer that is `{"name": ..., "parameters": {...}}`, or such an object
after `<|python_tag|>`; several are separated by semicolons. Code after that tag stays text."""

from __future__ import annotations

from moesaic.serve.formats.calls import Calls
from moesaic.serve.formats.grammar_text import GrammarText, quoted
from moesaic.serve.formats.json_calls import read_call
from moesaic.serve.formats.stream import Malformed, Steps, Stream
from moesaic.serve.formats.tool_format import ToolFormat, recover, text_with_calls

_TAG = "<|python_tag|>"


def _read_calls(stream: Stream, calls: Calls, start: str) -> Steps[None]:
    while True:
        yield from stream.skip_space()
        yield from read_call(stream, calls, bare=True)
        stream.keep()
        if not (yield from stream.take_if(";")):
            break


def _read(stream: Stream, calls: Calls) -> Steps[None]:
    stream.keep()
    yield from stream.skip_space()
    if (yield from stream.begins("{")):
        try:
            yield from _read_calls(stream, calls, "")
        except Malformed:
            yield from recover(stream, calls, "" if calls.count else "{")
    else:
        stream.rewind()
    yield from text_with_calls((_TAG,), _read_calls)(stream, calls)


def _grammar(grammar: GrammarText) -> str:
    return grammar.calls(grammar.each_json_call(("name", "parameters")), quoted("; "))


LLAMA3 = ToolFormat("llama3", _read, keeps_special=(_TAG,), grammar=_grammar)
