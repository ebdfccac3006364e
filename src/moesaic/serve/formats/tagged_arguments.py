"""Arguments between tags, without quotes: their JSON is made here.

A call begins when its name and the tag after it were read. An argument that its schema says is a
string is passed on as it comes; any other when it is complete, typed by its schema."""

from __future__ import annotations

import json
from collections.abc import Sequence

from moesaic.serve.events import Event
from moesaic.serve.formats.calls import Calls
from moesaic.serve.formats.schemas import json_of
from moesaic.serve.formats.stream import Malformed, Steps, Stream, first_of

STRING = frozenset({"string"})


def read_value(
    stream: Stream,
    calls: Calls,
    argument: str,
    ends: Sequence[str],
    types: frozenset[str] | None = None,
) -> Steps[None]:
    """Read a value and the first of `ends`. `types` are those of the schema, unless the text
    states them. Before an incomplete value of another type than string the place that the caller
    has marked stays marked."""
    allowed = calls.types_of(argument) if types is None else types
    if allowed == STRING:
        stream.release()
        yield from _read_string(stream, calls, argument, ends)
    else:
        value = yield from _until_first(stream, ends)
        yield calls.member(argument, json_of(value, allowed))


def _read_string(stream: Stream, calls: Calls, argument: str, ends: Sequence[str]) -> Steps[None]:
    def escaped(piece: str) -> Event:
        return calls.arguments(json.dumps(piece, ensure_ascii=False)[1:-1])

    yield calls.member(argument, '"')
    found = yield from stream.pass_until(ends, escaped)
    if found is None:
        raise Malformed
    yield from stream.take(found)
    yield calls.arguments('"')


def _until_first(stream: Stream, ends: Sequence[str]) -> Steps[str]:
    longest, searched = max(map(len, ends)), 0
    while True:
        text = stream.rest
        found = first_of(text, ends, searched)
        if found is not None:
            place, end = found
            stream.at += place + len(end)
            return text[:place]
        searched = max(0, len(text) - longest + 1)
        yield from stream.wait()
