"""What a format of tool calls is, and the loop that finds calls among text.

White space directly before a call, and after the last one, belongs to the format; other white space
is text. A call that breaks before its `ToolCallBegin` is text exactly as it was written. One that
breaks later is closed with the arguments that were read, and text goes on where they broke."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moesaic.serve.events import Event, OutputParser, ReasoningDelta, TextDelta, ToolArguments
from moesaic.serve.formats.calls import Calls
from moesaic.serve.formats.grammar_text import GrammarText
from moesaic.serve.formats.schemas import Tool
from moesaic.serve.formats.stream import SPACE, Malformed, Steps, Stream

Read = Callable[[Stream, Calls], Steps[None]]
ReadCall = Callable[[Stream, Calls, str], Steps[None]]
WriteCalls = Callable[[GrammarText], str]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    name: str
    read: Read  # a whole answer
    keeps_special: tuple[str, ...] = ()  # special tokens that `read` must see as text
    # Special tokens that no text contains by chance: where one comes, reasoning has ended.
    ends_reasoning: tuple[str, ...] = ()
    # The grammar of calls, as the body of a rule; None: calls cannot be enforced.
    grammar: WriteCalls | None = None
    reasons: bool = False  # the format has reasoning of its own

    def parser(self, tools: Sequence[Tool] = ()) -> OutputParser:
        return FormatParser(self.read, tools)


class FormatParser:
    """Runs a parser that is written as a generator."""

    def __init__(self, read: Read, tools: Sequence[Tool] = ()) -> None:
        self._stream = Stream()
        self._steps = read(self._stream, Calls(tools))

    def feed(self, text: str) -> list[Event]:
        self._stream.feed(text)
        return self._run()

    def finish(self) -> list[Event]:
        self._stream.end()
        return self._run()

    def _run(self) -> list[Event]:
        events: list[Event] = []
        for event in self._steps:
            if event is None:
                break
            if not (events and _joined(events, event)):
                events.append(event)
        return events


def text_with_calls(starts: Sequence[str], read_call: ReadCall) -> Read:
    """Text in which each of `starts` begins a call. `read_call` reads it, and any calls that
    belong to the same section; it is given the marker that was found, which it has not to read."""

    def read(stream: Stream, calls: Calls) -> Steps[None]:
        while True:
            before = calls.count
            found = yield from pass_text(stream, calls, starts)
            if found is None:
                return
            try:
                yield from read_call(stream, calls, found)
            except Malformed:
                yield from recover(stream, calls, found if calls.count == before else "")

    return read


def pass_text(stream: Stream, calls: Calls, starts: Sequence[str]) -> Steps[str | None]:
    """Yield text up to the first of `starts`, and read that; the place before it, and before the
    white space in front of it, is marked."""

    def text(piece: str) -> Event:
        calls.just_ended = False
        return TextDelta(piece)

    stream.release()
    found = yield from stream.pass_until(starts, text, SPACE)
    if found is None:
        space = stream.take_rest()
        if space and not calls.just_ended:
            yield TextDelta(space)
        return None
    stream.keep()
    yield from stream.skip_space()
    yield from stream.take(found)
    return found


def recover(stream: Stream, calls: Calls, marker: str) -> Steps[None]:
    """After a text that broke: close an open call. Where no call has begun since `marker`, give
    it back as text."""
    stream.rewind()
    if calls.is_open:
        yield calls.end()
    elif marker:
        yield from stream.skip_space()
        yield from stream.take(marker)
        calls.just_ended = False
        yield TextDelta(stream.since_kept())


def _joined(events: list[Event], event: Event) -> bool:
    """Join fragments of the same kind, which are certain at the same time."""
    last = events[-1]
    match last, event:
        case (TextDelta(a), TextDelta(b)):
            events[-1] = TextDelta(a + b)
        case (ReasoningDelta(a), ReasoningDelta(b)):
            events[-1] = ReasoningDelta(a + b)
        case (ToolArguments(i, a), ToolArguments(j, b)) if i == j:
            events[-1] = ToolArguments(i, a + b)
        case _:
            return False
    return True
