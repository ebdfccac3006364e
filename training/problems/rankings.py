"""Draws of attributes: who is the tallest, the middle one, by how much; with numbers or in chains.

Which attribute, and how its numbers are told, is part of the draw: one template asks about all of
a family (see attributes.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from random import Random

from training.problems.attributes import Attribute, Degrees, family
from training.problems.chance import between, pick, several, shuffled
from training.problems.draws import NamedDraw, maker
from training.problems.grammar import capital, enumerate_words
from training.problems.text import Fields

_WORDS = "which Which verb Are unit more most less least high low"
_PLACES = {"top": -1, "second": -2, "middle": None, "second_last": 1, "bottom": 0}  # None: half way
_FORMS = ("{}", "the_{}", "{}_n")


@cache
def _words(which: str, verb: str, unit: str, up: Degrees, down: Degrees) -> Fields:
    return {
        "which": which,
        "Which": capital(which),
        "verb": verb,
        "Are": "Were" if verb == "was" else "Are",
        "unit": unit,
        "more": up.more,
        "most": up.most,
        "high": up.plain,
        "less": down.more,
        "least": down.most,
        "low": down.plain,
    }


def _told(rng: Random, about: Attribute, who: list[str], the: list[str], told: list[str]) -> str:
    """The numbers as sentences, as one sentence, or as a table in a line."""
    style = between(rng, 0, 3)
    if style == 3:
        table = ", ".join([f"{name} {number}" for name, number in zip(who, told, strict=True)])
        return f"Here are {about.title}: {table}."
    says = pick(rng, about.says)
    clauses = [says.format(name, n=number) for name, number in zip(the, told, strict=True)]
    if style == 2:
        return capital(enumerate_words(clauses)) + "."
    return " ".join([f"{capital(clause)}." for clause in clauses])


def _relation(about: Attribute, who: str, much: list[int]) -> str:
    more = much[0] > much[1]
    word, degrees = ("more", about.up) if more else ("less", about.down)
    return f"{much[0]} is {word} than {much[1]}, so {who} {about.verb} {degrees.more}"


def _at_places(names: Sequence[str], subjects: Sequence[str], numbers: Sequence[str]) -> Fields:
    """Who stands where in the rising order: {top}, {the_top} with its article, {top_n}."""
    fields: Fields = {}
    for place, at in _PLACES.items():
        index = len(names) // 2 if at is None else at
        told = (names[index], subjects[index], numbers[index])
        fields.update(zip((form.format(place) for form in _FORMS), told, strict=True))
    return fields


@maker("ranked")
def ranked(name: str, count: str, only: str = "") -> NamedDraw:
    """p1 has the number n1, p2 has n2...; `only` is "gap" where the difference is asked."""
    abouts = [about for about in family(name) if about.gap or only != "gap"]
    many = int(count)
    numbers = [f"n{n}" for n in range(1, many + 1)]
    subjects = [f"s{n}" for n in range(1, many + 1)]

    def draw(rng: Random) -> Fields:
        about = pick(rng, abouts)
        who, much = several(rng, about.pool.words, many), several(rng, about.sizes, many)
        the = about.pool.subjects(who)
        told = [str(number) for number in much]
        order = sorted(zip(much, told, who, the, strict=True))
        _, rising_n, rising, the_rising = zip(*order, strict=True)
        gap = order[-1][0] - order[0][0]
        asked = [f"{one} with {n} {about.unit}" for one, n in zip(the, told, strict=True)]
        fields = {
            **_words(about.which, about.verb, about.unit, about.up, about.down),
            "told": _told(rng, about, who, the, told),
            "listed": " ".join([f"{one}: {n}." for one, n in zip(who, told, strict=True)]),
            "options": f"{', '.join(the[:-1])} or {the[-1]}",
            "choices": f"{', '.join(asked[:-1])} or {asked[-1]}",
            "group": enumerate_words(the),
            "first_more": "yes" if much[0] > much[1] else "no",
            "first_less": "yes" if much[0] < much[1] else "no",
            "relation": _relation(about, the[0], much),
            **_at_places(rising, the_rising, rising_n),
            "rising": ", ".join(rising),
            "falling": ", ".join(rising[::-1]),
            "rising_n": ", ".join(rising_n),
            "falling_n": ", ".join(rising_n[::-1]),
            "gap": str(gap),
            "gap_step": f"{rising_n[-1]} - {rising_n[0]} = {gap}",
        }
        fields.update(zip(numbers, told, strict=True))
        fields.update(zip(subjects, the, strict=True))
        return fields

    given = (
        f"{_WORDS} told listed options choices group first_more first_less relation rising falling "
        "rising_n falling_n gap gap_step"
    )
    at_places = [f.format(place) for place in _PLACES for f in _FORMS]
    return NamedDraw(draw, (*given.split(), *at_places, *numbers, *subjects), tuple(numbers))


@maker("alike")
def alike(name: str) -> NamedDraw:
    """Two numbers that are the same every other time."""
    abouts = family(name)

    def draw(rng: Random) -> Fields:
        about = pick(rng, abouts)
        who, much = several(rng, about.pool.words, 2), several(rng, about.sizes, 2)
        if rng.random() < 0.5:
            much[1] = much[0]
        same, the = much[0] == much[1], about.pool.subjects(who)
        told = [str(number) for number in much]
        return {
            **_words(about.which, about.verb, about.unit, about.up, about.down),
            "told": _told(rng, about, who, the, told),
            "listed": f"{who[0]}: {told[0]}. {who[1]}: {told[1]}.",
            "group": enumerate_words(the),
            "n1": told[0],
            "n2": told[1],
            "compared": f"{much[0]} is {'the same as' if same else 'not the same as'} {much[1]}",
            "same": "yes" if same else "no",
            "different": "no" if same else "yes",
        }

    given = f"{_WORDS} told listed group n1 n2 compared same different"
    return NamedDraw(draw, tuple(given.split()), ("n1", "n2"))


@maker("chain")
def chain(name: str, count: str) -> NamedDraw:
    """A is taller than B, B is taller than C: in any order, some said the other way round."""
    abouts, many = family(name), int(count)
    names = [f"p{n}" for n in range(1, many + 1)]

    def draw(rng: Random) -> Fields:
        about = pick(rng, abouts)
        up, down = (about.up, about.down) if rng.random() < 0.5 else (about.down, about.up)
        who = several(rng, about.pool.words, many)
        the = about.pool.subjects(who)
        steps = [f"{one} {about.verb} {up.more} than {two}" for one, two in pairwise(the)]
        turned = [f"{two} {about.verb} {down.more} than {one}" for one, two in pairwise(the)]
        first, *rest = shuffled(rng, range(many - 1))
        facts = [steps[first]]  # the solution begins with the word that the question began with
        facts += [turned[n] if rng.random() < 0.5 else steps[n] for n in rest]
        ends = [the[0], the[-1]] if rng.random() < 0.5 else [the[-1], the[0]]
        fields = {
            **_words(about.which, about.verb, about.unit, up, down),
            "facts": " ".join(f"{capital(fact)}." for fact in facts),
            "joined": enumerate_words(facts),
            "known": capital(", ".join([*steps[:-1], f"and {steps[-1]}"] if many > 2 else steps)),
            "top": who[0],
            "the_top": the[0],
            "the_bottom": the[-1],
            "bottom": who[-1],
            "middle": who[many // 2],
            "second": who[1],
            "falling": ", ".join(who),
            "rising": ", ".join(reversed(who)),
            "ends": " or ".join(ends),
            "mixed": enumerate_words(sorted(the)),
        }
        fields.update(zip(names, who, strict=True))
        return fields

    given = (
        f"{_WORDS} facts joined known top the_top the_bottom bottom middle second falling rising "
        "ends mixed"
    )
    return NamedDraw(draw, (*given.split(), *names), tuple(names))
