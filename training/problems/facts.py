"""Passages put together from relations: many sentences for one fact, and questions from all sides.

A relation is a block of data/relations/<theme>.txt: `text` lines are ways to say it, `ask` lines
ways to ask, each group of them with its `answer`. {A} is a person, {n} a number, everything else a
slot of words.py. A template asks for a theme and an arrangement:

    alike    the same relation for several people
    mixed    another relation for every person
    portrait two people, several relations each; "she" or "he" once the name was said
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from random import Random
from typing import NamedTuple

from training.problems.chance import between, pick, several
from training.problems.draws import NamedDraw, maker
from training.problems.grammar import capital, singular, with_article
from training.problems.names import PEOPLE
from training.problems.reader import blocks, variants
from training.problems.text import Fields, fields_of
from training.problems.words import ONE_OF, PAIRS, SINGLES

_GIVES = ("passage", "question", "evidence", "answer", "relation", "said")
_ABOUT_A = frozenset({"A", "he", "his", "him", "He", "His"})


class Question(NamedTuple):
    asks: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class Relation:
    name: str
    texts: tuple[str, ...]
    later: tuple[str, ...]  # the same with a pronoun, where the person begins the sentence
    questions: tuple[Question, ...]
    slots: tuple[str, ...]


class Fact(NamedTuple):
    relation: Relation
    fields: Fields


@maker("facts")
def facts(theme: str, arrangement: str) -> NamedDraw:
    relations = _relations(theme)
    arrange = _ARRANGEMENTS[arrangement]

    def draw(rng: Random) -> Fields:
        sentences, fact, evidence = arrange(rng, relations)
        question = pick(rng, fact.relation.questions)
        return {
            "passage": " ".join(sentences),
            "question": pick(rng, question.asks).format_map(fact.fields),
            "evidence": evidence,
            "answer": question.answer.format_map(fact.fields),
            "relation": fact.relation.name,
            "said": " ".join(fact.fields[name] for name in ("A", *fact.relation.slots)),
        }

    return NamedDraw(draw, _GIVES, ("relation", "said"))


Arranged = tuple[list[str], Fact, str]  # the passage, the fact asked about, what says it


def _alike(rng: Random, relations: Sequence[Relation]) -> Arranged:
    relation = pick(rng, relations)
    told = _instances(rng, relation, _people(rng, between(rng, 3, 5)))
    return _in_any_order(rng, told, same_words=rng.random() < 0.5)


def _mixed(rng: Random, relations: Sequence[Relation]) -> Arranged:
    chosen = several(rng, relations, between(rng, 3, 5))
    people = _people(rng, len(chosen))
    told = [
        _instances(rng, relation, [who])[0] for relation, who in zip(chosen, people, strict=True)
    ]
    return _in_any_order(rng, told, same_words=False)


def _in_any_order(rng: Random, told: list[Fact], same_words: bool) -> Arranged:
    form = int(rng.random() * len(told[0].relation.texts))
    sentences = [
        (fact.relation.texts[form] if same_words else pick(rng, fact.relation.texts)).format_map(
            fact.fields
        )
        for fact in told
    ]
    asked = int(rng.random() * len(told))
    return sentences, told[asked], sentences[asked]


def _portrait(rng: Random, relations: Sequence[Relation]) -> Arranged:
    chosen = several(rng, relations, between(rng, 2, 3))
    people = _people(rng, 2)
    pairs = [_instances(rng, relation, people) for relation in chosen]
    asked_person, sentences, asked = int(rng.random() * 2), [], int(rng.random() * len(chosen))
    evidence = ""
    for person in range(2):
        own = []
        for place, pair in enumerate(pairs):
            relation = pair[person].relation
            forms = relation.later if place and relation.later else relation.texts
            own.append(pick(rng, forms).format_map(pair[person].fields))
        sentences += own
        if person == asked_person:
            named = pairs[asked][0].relation.later and asked
            evidence = " ".join(own[: asked + 1] if named else own[asked : asked + 1])
    return sentences, pairs[asked][asked_person], evidence


_ARRANGEMENTS: dict[str, Callable[[Random, Sequence[Relation]], Arranged]] = {
    "alike": _alike,
    "mixed": _mixed,
    "portrait": _portrait,
}


def _people(rng: Random, count: int) -> list[Fields]:
    return several(rng, _persons(), count)


def _instances(rng: Random, relation: Relation, people: Sequence[Fields]) -> list[Fact]:
    """One fact for each of the people, no word twice."""
    told = [dict(person) for person in people]
    for slot in relation.slots:
        for fields, words in zip(told, several(rng, _forms(slot), len(told)), strict=True):
            fields.update(words)
    return [Fact(relation, fields) for fields in told]


@cache
def _persons() -> tuple[Fields, ...]:
    return tuple(
        {
            "A": who.name,
            "he": who.he,
            "his": who.his,
            "him": who.him,
            "He": capital(who.he),
            "His": capital(who.his),
        }
        for who in PEOPLE
    )


@cache
def _forms(slot: str) -> tuple[Fields, ...]:
    """For each word of a slot, every way a text may ask for it."""
    if slot == "n":
        return tuple({"n": str(number)} for number in range(2, 60))
    if slot in SINGLES:
        found = [{slot: word} for word in SINGLES[slot]]
    else:
        many, one = ONE_OF[slot], singular(ONE_OF[slot])
        found = [{many: plural, one: single} for plural, single in PAIRS[many]]
    for fields in found:
        for name, word in list(fields.items()):
            fields[capital(name)] = capital(word)
            fields[f"an {name}"] = with_article(word)
            fields[f"An {name}"] = capital(with_article(word))
    return tuple(found)


@cache
def _relations(theme: str) -> tuple[Relation, ...]:
    text = (files("training.problems") / "data" / "relations" / f"{theme}.txt").read_text("ascii")
    return tuple(_relation(name, lines) for name, lines in blocks(text))


def _relation(name: str, lines: list[tuple[str, str]]) -> Relation:
    texts = tuple(form for word, said in lines if word == "text" for form in variants(said))
    questions: list[Question] = []
    asks: tuple[str, ...] = ()
    for word, said in lines:
        if word == "ask":
            asks += variants(said)
        elif word == "answer":
            questions.append(Question(asks, said))
            asks = ()
    later = tuple(_with_pronoun(text) for text in texts if text.startswith(("{A} ", "{A}'s ")))
    return Relation(name, texts, later, tuple(questions), _slots(texts))


def _with_pronoun(text: str) -> str:
    return "{His} " + text[6:] if text.startswith("{A}'s ") else "{He} " + text[4:]


def _slots(texts: tuple[str, ...]) -> tuple[str, ...]:
    """The slots of a relation, one of each: {an good} and {goods} are the same."""
    words = [name.split()[-1] for name in fields_of(texts) if name not in _ABOUT_A]
    plain = [word if word in ONE_OF else word[0].lower() + word[1:] for word in words]
    return tuple(
        dict.fromkeys(word if word in SINGLES or word == "n" else _one(word) for word in plain)
    )


def _one(word: str) -> str:
    return word if word in ONE_OF else singular(word)
