"""A template: values drawn at random, and several ways to tell them as a question.

A template does not know the splits; it draws, says which values count as the same problem, and
tells. Everything but the draw is fixed by the values, the words that fill the text and the telling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from random import Random

from moesaic.lab.evaluation.final_answer import MARK
from training.problems.chance import between, pick, shuffled
from training.problems.draws import Draw
from training.problems.text import Fields, Filler, fillers

Wanted = Callable[[str, tuple[str, ...]], bool]  # template, values


@dataclass(frozen=True)
class Telling:
    """One wording. A passage is a story, told whole and in order, or it is facts in any order, of
    which some are left out, but never the evidence."""

    questions: tuple[str, ...]  # the same but for a word here and there
    worked: str
    answer: str
    passage: tuple[str, ...] = ()
    evidence: tuple[int, ...] = ()
    in_order: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        return (*self.passage, *self.questions, self.worked, self.answer)

    def ask(self, rng: Random, fields: Fields) -> str:
        question = pick(rng, self.questions)
        if not self.passage:
            return question.format_map(fields)
        told = self.passage if self.in_order else self._some_facts(rng)
        return " ".join([*told, question]).format_map(fields)

    def _some_facts(self, rng: Random) -> list[str]:
        others = [n for n in range(len(self.passage)) if n not in self.evidence]
        kept = shuffled(rng, others)[: between(rng, min(2, len(others)), len(others))]
        return [self.passage[n] for n in shuffled(rng, [*self.evidence, *kept])]


@dataclass(frozen=True)
class Template:
    id: str
    kind: str
    draw: Draw
    gives: tuple[str, ...]  # the fields that `draw` sets
    key: tuple[str, ...]  # the fields that make it this problem and not another
    tellings: tuple[Telling, ...]
    steps: int = 1
    held_out: bool = False

    @cached_property
    def _fillers(self) -> tuple[tuple[Filler, ...], ...]:
        key = tuple(f"{{{name}}}" for name in self.key)
        return tuple(fillers((*key, *telling.texts), self.gives) for telling in self.tellings)

    @cached_property
    def _key_is_drawn(self) -> bool:
        return all(name in self.gives for name in self.key)

    def attempt(self, rng: Random, wanted: Wanted) -> Problem | None:
        """A problem, unless the values drawn make none or are not wanted."""
        fields = self.draw(rng)
        if fields is None:
            return None
        if self._key_is_drawn and not wanted(self.id, self._values(fields)):
            return None  # before words are chosen: most draws for held-out numbers end here
        number = int(rng.random() * len(self.tellings))
        for fill in self._fillers[number]:
            fill(rng, fields)
        values = self._values(fields)
        if not self._key_is_drawn and not wanted(self.id, values):
            return None
        telling = self.tellings[number]
        answer = telling.answer.format_map(fields)
        worked = f"{telling.worked.format_map(fields)}\n{MARK} {answer}"
        question = telling.ask(rng, fields)
        return Problem(question, worked, answer, self.kind, self.id, self.steps, values)

    def _values(self, fields: Fields) -> tuple[str, ...]:
        return tuple([fields[name] for name in self.key])


# A question with its worked solution.


@dataclass(frozen=True, slots=True)
class Problem:
    question: str
    worked: str  # ends with the line "Answer: <answer>"
    answer: str
    kind: str
    template: str
    steps: int  # of arithmetic or of looking something up
    values: tuple[str, ...]  # what decides between train and held_out_numbers
