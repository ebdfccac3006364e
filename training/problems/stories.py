"""Stories put together from sentences: a start, what happens to it, and a question that fits.

"draw: story food 3" draws a story of the family `food` that takes three steps. It can be told in
sentences of their own or joined, {told} or {joined}, and then be asked about, {question} or {find},
or all be one question, {whole}. The fields =s1, =s2... are the solution, a step each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from random import Random
from typing import NamedTuple

from training.problems.chance import between, pick, several
from training.problems.draws import NamedDraw, maker
from training.problems.grammar import capital, singular
from training.problems.names import PEOPLE
from training.problems.stories_numbers import Happening, happenings, plans
from training.problems.stories_words import Family, Wording, families
from training.problems.text import Fields
from training.problems.words import PAIRS, SINGLES

_SOON = (
    ("", "Then", "After that,", "Finally,"),
    ("", "", "", ""),
    ("", "Later", "Then", "In the end"),
    ("First,", "Next,", "Then", "At last,"),
    ("A minute later,", "Soon after,", "A little later,", "After that,"),
)
_TIMES = (
    *_SOON,
    ("On Monday,", "On Tuesday,", "On Wednesday,", "On Thursday,"),
    ("On Friday,", "On Saturday,", "On Sunday,", "One day later,"),
    ("In the morning,", "At noon,", "In the afternoon,", "In the evening,"),
    ("In April,", "In May,", "In June,", "In July,"),
)
_ONCE = ("Then", "Later", "", "After a while,", "Soon after,", "A little later,", "After that,")
_FIND = ("Find out", "Work out", "Calculate", "Tell me", "Say")
_LINKS = (" and then ", " and ", " and later ")
_ASIDE_SHARE = 0.25


class Clause(NamedTuple):
    said: str
    doing: str
    subject_left_out: bool


@maker("story")
def story(name: str, steps: str) -> NamedDraw:
    told_by, count = families()[name], int(steps)
    courses = plans(told_by.kinds, count)
    assert courses, f"no story of {name} takes {steps} steps"

    def draw(rng: Random) -> Fields | None:
        events = happenings(rng, pick(rng, courses), told_by.low, told_by.high)
        return None if events is None else _Story(rng, told_by, events, f"s{count}")

    solved = tuple(f"=s{number}" for number in range(1, count + 1))
    return NamedDraw(draw, (*_TEXTS, *solved, f"s{count}", "course"), ("course",))


class _Story(Fields):
    """Words are chosen when they are first asked for: where the numbers are not wanted, never."""

    def __init__(self, rng: Random, told_by: Family, events: list[Happening], answer: str) -> None:
        super().__init__()
        self["course"] = " ".join(f"{event.kind}{event.n}x{event.m}" for event in events)
        self[answer] = str(events[-1].steps[-1].result)
        self._given = rng, told_by, events

    @cached_property
    def _writer(self) -> _Writer:
        return _Writer(*self._given)

    def __missing__(self, name: str) -> str:
        if name in _TEXTS:
            self[name] = _TEXTS[name](self._writer)
        else:
            self.update(self._writer.solution())
        return self[name]


class _Writer:
    """The words of one story: chosen once, told in whatever order is asked for."""

    def __init__(self, rng: Random, told_by: Family, events: list[Happening]) -> None:
        self.rng, self.told_by, self.events = rng, told_by, events
        self.tense = int(rng.random() * 2)
        first, *self.others = several(rng, PEOPLE, len(events) + 2)
        if told_by.who:
            self.fields = {"A": pick(rng, told_by.who), "s": "it", "o": "it", "p": "its"}
        else:
            self.fields = {"A": first.name, "s": first.he, "o": first.him, "p": first.his}
        things = several(rng, told_by.things, min(2, len(told_by.things)))
        self.fields["t"], self.fields["one"] = things[0]
        self.fields["u"] = things[-1][0]
        self.last = Clause("", "", False)
        self.shared: Wording | None = None
        self.clauses = [self._clause(event) for event in events]

    def _clause(self, event: Happening) -> Clause:
        rng, fields = self.rng, self.fields
        wording = pick(rng, self.told_by.wordings[event.kind])
        fields["n"], fields["m"] = str(event.n), str(event.m)
        for name in wording.slots:
            if name == "B":
                fields["B"] = self.others.pop().name
            elif name in PAIRS:
                fields[name], fields[singular(name)] = pick(rng, PAIRS[name])
            else:
                fields[name] = pick(rng, SINGLES[name])
        if event.kind == "share":
            self.shared = wording
        said = wording.said[self.tense].format_map(fields)
        doing = wording.doing[self.tense].format_map(fields)
        return Clause(said, doing, wording.subject_left_out)

    def tell(self, clause: Clause, by_name: bool = False) -> str:
        """With its subject: the name, unless the sentence before had the same one."""
        before, self.last = self.last, clause
        if not clause.subject_left_out:
            return clause.said
        named = by_name or not before.subject_left_out
        return f"{self.fields['A' if named else 's']} {clause.said}"

    def chain(self, clauses: list[Clause], link: str) -> str:
        """Several clauses in one sentence; a subject is said again only where it changes."""
        parts, same = [self.tell(clauses[0])], clauses[0].subject_left_out
        for clause in clauses[1:]:
            parts.append(clause.said if same and clause.subject_left_out else self.tell(clause))
            same = same and clause.subject_left_out
            self.last = clause
        *begun, end = parts
        return f"{', '.join(begun)}{link if same else ',' + link}{end}"

    def aside(self) -> str:
        fields, wording = self.fields, pick(self.rng, self.told_by.wordings["aside"])
        fields["x"], fields["B"] = str(between(self.rng, 3, 60)), self.others.pop().name
        self.last = Clause("", "", False)
        return f"{capital(wording.said[self.tense].format_map(fields))}."

    def asked(self, kind: str, by_name: bool = False) -> str:
        fields = self.fields
        known = self.last.subject_left_out and not by_name
        fields["who"] = fields["s" if known else "A"]
        if self.shared:
            text = (self.shared.question if kind == "ask" else self.shared.find)[self.tense]
        else:
            text = pick(self.rng, self.told_by.wordings[kind]).said[self.tense]
        return text.format_map(fields)

    def solution(self) -> Fields:
        """=s1 and so on; what is taken from the question stands before the step it is for."""
        fields: Fields = {}
        before = ""
        work = self.told_by.wordings
        for event in self.events:
            said = work[f"work_{event.kind}"][0].said[0]
            self.fields["n"], self.fields["m"] = str(event.n), str(event.m)
            text = before + capital(said.format_map(self.fields))
            before = "" if event.steps else text + " "
            for step in event.steps:
                fields[f"=s{len(fields) + 1}"] = f"{text} {step.text}"
                text = "Together:" if event.kind == "packs_in" else "What is left:"
        return fields


def _told(writer: _Writer) -> str:
    rng, clauses = writer.rng, writer.clauses
    known = _SOON if writer.told_by.quick else _TIMES
    times = pick(rng, known) if len(clauses) > 2 else (pick(rng, _ONCE),)
    aside = between(rng, 1, len(clauses)) if rng.random() < _ASIDE_SHARE else 0
    said = []
    for number, clause in enumerate(clauses):
        time = times[number - 1] if number else ""
        told = writer.tell(clause)
        said.append(f"{time} {told}." if time else f"{capital(told)}.")
        if number + 1 == aside:
            said.append(writer.aside())
    return " ".join(said)


def _joined(writer: _Writer) -> str:
    rng, (start, *rest) = writer.rng, writer.clauses
    link = pick(rng, _LINKS)
    said = [writer.aside()] if rng.random() < _ASIDE_SHARE else []
    if len(rest) == 1 or rng.random() < 0.3:
        said.append(f"{capital(writer.chain(writer.clauses, link))}.")
    else:
        said.append(f"{capital(writer.tell(start))}.")
        while rest:
            said.append(f"{capital(_pair(writer, rest[:2], link))}.")
            rest = rest[2:]
    return " ".join(said)


def _whole(writer: _Writer) -> str:
    asked = writer.asked("ask", by_name=True)
    if writer.fields["A"] in asked:
        writer.last = Clause("", "", True)  # named already
    return f"{asked} if {writer.chain(writer.clauses, pick(writer.rng, _LINKS))}?"


def _question(writer: _Writer) -> str:
    return f"{writer.asked('ask').rstrip(',')}?"


def _find(writer: _Writer) -> str:
    return f"{pick(writer.rng, _FIND)} {writer.asked('find')}."


def _pair(writer: _Writer, pair: list[Clause], link: str) -> str:
    style = int(writer.rng.random() * 4)
    if len(pair) == 1 or style == 0:
        return writer.chain(pair, link) if len(pair) > 1 else f"then {writer.tell(pair[0])}"
    first, second = pair
    if first.subject_left_out and second.subject_left_out:
        if style == 1:
            return f"before {second.doing}, {writer.tell(first)}"
        if style == 2:
            return f"after {first.doing}, {writer.tell(second)}"
    if style == 1:
        return writer.chain(pair, link)
    return f"after {writer.tell(first)}, {writer.tell(second)}"


_TEXTS: dict[str, Callable[[_Writer], str]] = {
    "told": _told,
    "joined": _joined,
    "whole": _whole,
    "question": _question,
    "find": _find,
}
