"""Calls written as JSON: an object with a name and arguments, or the arguments alone.

A call begins when its name and the first character of its arguments were read. Until then a call
that turns out to be none is text."""

from __future__ import annotations

import json

from moesaic.serve.formats.calls import Calls
from moesaic.serve.formats.json_scanner import JsonScanner
from moesaic.serve.formats.stream import Malformed, Steps, Stream

_NAME, _ARGUMENTS, _ID = "name", ("arguments", "parameters"), "id"
_KNOWN = {_NAME, _ID, "type", *_ARGUMENTS}


def read_call(stream: Stream, calls: Calls, bare: bool = False) -> Steps[None]:
    """`{"name": ..., "arguments": {...}}`, its keys in any order. Further keys are read over where
    there are arguments. `bare`: nothing but its form says that it is a call, so it must have
    arguments and no further keys."""
    yield from stream.take("{")
    name, id, early = None, None, ""
    further = False
    begun = calls.count
    while True:
        yield from stream.skip_space()
        key = yield from _string(stream)
        yield from _separator(stream, ":")
        further = further or key not in _KNOWN
        repeated = (key == _NAME and name is not None) or (key in _ARGUMENTS and early)
        if repeated or (bare and further):
            raise Malformed
        if key == _NAME:
            name = yield from _string(stream)
        elif key in _ARGUMENTS:
            if name is None:
                early = yield from _value(stream)
            else:
                yield from read_arguments(stream, calls, name, id)
        else:
            skipped = yield from _value(stream)
            id = json.loads(skipped) if key == _ID and skipped[:1] == '"' else id
        if calls.count > begun:
            yield from _read_over_rest(stream)
            return
        more = yield from _has_more(stream)
        if not more:
            break
    if name is None or ((bare or further) and not early):
        raise Malformed
    arguments = _object_of(early)
    yield calls.begin(name, id)
    yield calls.arguments(arguments)
    yield calls.end()


def read_arguments(stream: Stream, calls: Calls, name: str, id: str | None = None) -> Steps[None]:
    """The arguments' object, as it comes: a whole call. Arguments that were quoted as a string
    are read at once, null is an empty object."""
    if not name:
        raise Malformed
    first = yield from stream.peek()
    if first != "{":
        arguments = _object_of((yield from _value(stream)))
        yield calls.begin(name, id)
        yield calls.arguments(arguments)
    else:
        yield calls.begin(name, id)
        stream.release()
        scanner = JsonScanner()
        while not scanner.done:
            length, text = scanner.feed(stream.rest)
            stream.at += length
            if text:
                yield calls.arguments(text)
            if scanner.broken:
                raise Malformed
            if not scanner.done:
                yield from stream.wait()
    yield calls.end()
    stream.keep()


def _read_over_rest(stream: Stream) -> Steps[None]:
    """What follows the arguments in the object. Where it is not as it should be, the call is
    valid all the same, and what was not read is text."""
    try:
        while (yield from _has_more(stream)):
            yield from stream.skip_space()
            key = yield from _string(stream)
            if key == _NAME or key in _ARGUMENTS:  # of another call
                raise Malformed
            yield from _separator(stream, ":")
            yield from _value(stream)
    except Malformed:
        stream.rewind()
    stream.keep()


def _object_of(text: str) -> str:
    """A JSON object, also from one quoted as a string; none: an empty one."""
    if text[:1] == '"':
        text = json.loads(text) or "{}"
        scanner = JsonScanner()
        _, text = scanner.feed(text.strip())
        if not scanner.done:
            raise Malformed
    if text in ("", "null"):
        return "{}"
    if text[:1] != "{":
        raise Malformed
    return text


def _has_more(stream: Stream) -> Steps[bool]:
    """Read a comma, or the end of an object."""
    yield from stream.skip_space()
    found = yield from stream.take_first((",", "}"))
    return found == ","


def _separator(stream: Stream, literal: str) -> Steps[None]:
    yield from stream.skip_space()
    yield from stream.take(literal)
    yield from stream.skip_space()


def _string(stream: Stream) -> Steps[str]:
    if not (yield from stream.begins('"')):
        raise Malformed
    found = json.loads((yield from _value(stream)))
    assert isinstance(found, str), "it began with a quotation mark"
    return found


def _value(stream: Stream) -> Steps[str]:
    """One value, as JSON."""
    scanner, read, written = JsonScanner(), 0, ""
    while True:
        length, text = scanner.feed(stream.rest[read:])
        read += length
        written += text
        if scanner.broken:
            raise Malformed
        if scanner.done:
            stream.at += read
            return written
        yield from stream.wait()
