"""Templates from text files: one block each, begun by "== name".

    == buys-more
    numbers: a 3..80, b 2..60
    ask: {A} has {a} {things}. {He} buys {b} more. How many {things} does {A} have now?
    work: {A} starts with {a} {things}. {He} buys {b} more. [c = a + b].

`numbers` (see numbers.py) or `draw` (see draws.py) says what is drawn. Several `ask` lines are
wordings of one question, and (buys|gets) is one word or the other; several `work` lines are ways
to solve it. `answer` is the last number computed unless it is given. A passage is made of `text`
lines; `because: 1 3` names those that hold the answer to the question above it. An `ask` behind an
`answer` begins another question on the same draw. `in order: yes` keeps the passage's order. `key`
names the fields that make it this problem and not another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from training.problems import numbers
from training.problems.draws import named_draw
from training.problems.template import Telling, Template

Line = tuple[str, str]


@dataclass
class _Question:
    asks: list[str] = field(default_factory=list)
    works: list[str] = field(default_factory=list)
    answer: str = ""
    because: tuple[int, ...] = ()


def read(text: str, kind: str, held_out: bool) -> list[Template]:
    return [_template(name, lines, kind, held_out) for name, lines in blocks(text)]


def blocks(text: str) -> Iterator[tuple[str, list[Line]]]:
    """A template's name, and its lines as (word before the colon, the rest)."""
    for block in text.split("\n== ")[1:]:
        name, *rest = [line.strip() for line in block.splitlines() if line.strip()]
        yield name, [(word, said.strip()) for word, _, said in (x.partition(":") for x in rest)]


def variants(text: str) -> tuple[str, ...]:
    """Every way to read a text with (one|or another) word."""
    parts = [part.split("|") for part in re.split(r"\(([^()]*\|[^()]*)\)", text)]
    return tuple("".join(chosen) for chosen in product(*parts))


def _template(name: str, lines: list[Line], kind: str, held_out: bool) -> Template:
    once = {word: said for word, said in lines if word in ("numbers", "draw", "key", "in order")}
    passage = tuple(said for word, said in lines if word == "text")
    questions = list(_questions(name, lines))
    steps = numbers.steps_of(questions[0].works[0]) if questions[0].works else []
    if spec := once.get("numbers"):
        draw, gives = numbers.drawer(spec, steps), numbers.gives(spec, steps)
        key = numbers.key(spec)
    elif named := once.get("draw"):
        draw, gives, key = named_draw(named)
    else:
        draw, gives, key = (lambda _: {}), (), ()
    key = tuple(once["key"].split()) if "key" in once else key
    assert key, f"{name}: nothing tells its problems apart"
    tellings = [
        telling
        for question in questions
        for telling in _tellings(question, passage, "in order" in once, steps)
    ]
    return Template(name, kind, draw, gives, key, tuple(tellings), max(1, len(steps)), held_out)


def _questions(name: str, lines: list[Line]) -> Iterator[_Question]:
    now = _Question()
    for word, said in lines:
        if word == "ask":
            if now.answer:
                yield now
                now = _Question()
            now.asks.append(said)
        elif word == "work":
            now.works.append(said)
        elif word == "because":
            now.because = tuple(int(number) - 1 for number in said.split())
        elif word == "answer":
            now.answer = said
        else:
            assert word in ("numbers", "draw", "key", "in order", "text"), f"{name}: {word}?"
    yield now


def _tellings(
    question: _Question, passage: tuple[str, ...], in_order: bool, steps: list[numbers.Step]
) -> Iterator[Telling]:
    answer = question.answer or f"{{{steps[-1].name}}}"
    evidence = " ".join(passage[number] for number in question.because)
    for work in question.works or [f"The text says: {evidence}"]:
        written = numbers.with_written_steps(work)
        for ask in question.asks:
            yield Telling(variants(ask), written, answer, passage, question.because, in_order)
