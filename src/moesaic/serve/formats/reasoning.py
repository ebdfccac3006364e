"""Reasoning before an answer, between two tags: a layer around the parser of any tool format.

Reasoning is looked for at the beginning of an answer alone: tags that come later, in text or in the
arguments of a call, are content. White space around both tags belongs to the format."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.serve.events import Event, OutputParser, ReasoningDelta
from moesaic.serve.formats.grammar_text import GrammarText, sequence
from moesaic.serve.formats.stream import SPACE, Steps, Stream


@dataclass(frozen=True, slots=True)
class ReasoningForm:
    name: str
    begin: str = ""
    end: str = ""
    special: tuple[str, ...] = ()  # the special tokens in them, where a tag is not just one

    @property
    def keeps_special(self) -> tuple[str, ...]:
        return self.special or tuple(tag for tag in (self.begin, self.end) if tag)

    def parser(
        self, inner: OutputParser, is_open: bool = False, ends: tuple[str, ...] = ()
    ) -> OutputParser:
        """`is_open`: the prompt has opened the reasoning. Each of `ends` ends reasoning, too, and
        belongs to what follows."""
        return ReasoningParser(self, inner, is_open, ends) if self.begin else inner

    def is_open(self, prompt: str) -> bool:
        """Whether the end of a prompt opens the reasoning."""
        return bool(self.begin) and prompt.rstrip().endswith(self.begin)

    def grammar(self, grammar: GrammarText, is_open: bool) -> str:
        """What comes before a call: the rest of the reasoning, or a whole one if there is any."""
        if not self.begin:
            return ""
        space = grammar.rule(r"/[ \t\r\n]{0,4}/")
        rest = sequence([grammar.free_text(self.end), space])
        return rest if is_open else f"({sequence([grammar.text(self.begin), rest])})?"


class ReasoningParser:
    """Passes on what follows the reasoning to another parser."""

    def __init__(
        self, form: ReasoningForm, inner: OutputParser, is_open: bool, ends: tuple[str, ...]
    ) -> None:
        self._form, self._inner, self._ends = form, inner, ends
        self._stream = Stream()
        self._steps = self._read(is_open)
        self._has_ended = False

    def feed(self, text: str) -> list[Event]:
        self._stream.feed(text)
        return [*self._run(), *self._inner.feed(self._passed_on())]

    def finish(self) -> list[Event]:
        self._stream.end()
        return [*self._run(), *self._inner.feed(self._passed_on()), *self._inner.finish()]

    def _run(self) -> list[Event]:
        events: list[Event] = []
        self._has_ended = True
        for event in self._steps:
            if event is None:
                self._has_ended = False
                break
            events.append(event)
        return events

    def _passed_on(self) -> str:
        return self._stream.take_rest() if self._has_ended else ""

    def _read(self, is_open: bool) -> Steps[None]:
        """Returns where the reasoning has ended."""
        stream = self._stream
        begins = yield from stream.take_if(self._form.begin)
        if not begins and not is_open:
            return
        yield from stream.skip_space()
        found = yield from stream.pass_until((self._form.end, *self._ends), ReasoningDelta, SPACE)
        if found is None:
            space = stream.take_rest()
            if space:
                yield ReasoningDelta(space)
            return
        yield from stream.skip_space()
        if found == self._form.end:
            yield from stream.take(found)
            yield from stream.skip_space()


NONE = ReasoningForm("none")
THINK = ReasoningForm("think", "<think>", "</think>")
MISTRAL = ReasoningForm("mistral", "[THINK]", "[/THINK]")
