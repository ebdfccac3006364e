"""Draws of attributes: who is the tallest, the middle one, by how much; with numbers or in chains.

Which attribute, and how its numbers are told, is part of the draw: one template asks about all of
a family (see attributes.py).
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

from moesaic.problems.attributes import Attribute, Degrees, family
from moesaic.problems.chance import between, pick, several, shuffled
from moesaic.problems.draws import NamedDraw, maker
from moesaic.problems.grammar import capital, enumerate_words
from moesaic.problems.text import Fields

_WORDS = "which Which verb Are unit more most less least high low"


def _words(about: Attribute, up: Degrees, down: Degrees) -> Fields:
    return {
        "which": about.which,
        "Which": capital(about.which),
        "verb": about.verb,
        "Are": "Were" if about.verb == "was" else "Are",
        "unit": about.unit,
        "more": up.more,
        "most": up.most,
        "high": up.plain,
        "less": down.more,
        "least": down.most,
        "low": down.plain,
    }


def _told(rng: Random, about: Attribute, who: list[str], much: list[int]) -> str:
    """The numbers as sentences, as one sentence, or as a table in a line."""
    pairs = list(zip(who, much, strict=True))
    style = between(rng, 0, 3)
    if style == 3:
        table = ", ".join(f"{name} {number}" for name, number in pairs)
        return f"Here are {about.title}: {table}."
    says = pick(rng, about.says)
    clauses = [says.format(about.pool.subject(name), n=number) for name, number in pairs]
    if style == 2:
        return capital(enumerate_words(clauses)) + "."
    return " ".join(f"{capital(clause)}." for clause in clauses)


def _relation(about: Attribute, first: str, much: list[int]) -> str:
    more = much[0] > much[1]
    word, degrees = ("more", about.up) if more else ("less", about.down)
    who = about.pool.subject(first)
    return f"{much[0]} is {word} than {much[1]}, so {who} {about.verb} {degrees.more}"


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
        order = sorted(zip(much, who, strict=True))
        (least, bottom), (most, top) = order[0], order[-1]
        subject = about.pool.subject
        asked = [f"{subject(one)} with {n} {about.unit}" for one, n in zip(who, much, strict=True)]
        fields = {
            **_words(about, about.up, about.down),
            "told": _told(rng, about, who, much),
            "listed": " ".join(f"{one}: {n}." for one, n in zip(who, much, strict=True)),
            "options": ", ".join(map(subject, who[:-1])) + " or " + subject(who[-1]),
            "choices": ", ".join(asked[:-1]) + " or " + asked[-1],
            "group": enumerate_words([subject(one) for one in who]),
            "first_more": "yes" if much[0] > much[1] else "no",
            "first_less": "yes" if much[0] < much[1] else "no",
            "relation": _relation(about, who[0], much),
            "top": top,
            "the_top": subject(top),
            "top_n": str(most),
            "bottom": bottom,
            "the_bottom": subject(bottom),
            "bottom_n": str(least),
            "middle": order[many // 2][1],
            "middle_n": str(order[many // 2][0]),
            "the_middle": subject(order[many // 2][1]),
            "second": order[-2][1],
            "the_second": subject(order[-2][1]),
            "second_n": str(order[-2][0]),
            "second_last": order[1][1],
            "the_second_last": subject(order[1][1]),
            "second_last_n": str(order[1][0]),
            "rising": ", ".join(one for _, one in order),
            "falling": ", ".join(one for _, one in reversed(order)),
            "rising_n": ", ".join(str(n) for n, _ in order),
            "falling_n": ", ".join(str(n) for n, _ in reversed(order)),
            "gap": str(most - least),
            "gap_step": f"{most} - {least} = {most - least}",
        }
        fields.update(zip(numbers, map(str, much), strict=True))
        fields.update(zip(subjects, map(subject, who), strict=True))
        return fields

    given = (
        f"{_WORDS} told listed options choices group first_more first_less relation top the_top "
        "top_n bottom the_bottom bottom_n middle middle_n the_middle second second_n the_second "
        "second_last second_last_n the_second_last rising falling rising_n falling_n gap gap_step"
    )
    return NamedDraw(draw, (*given.split(), *numbers, *subjects), tuple(numbers))


@maker("alike")
def alike(name: str) -> NamedDraw:
    """Two numbers that are the same every other time."""
    abouts = family(name)

    def draw(rng: Random) -> Fields:
        about = pick(rng, abouts)
        who, much = several(rng, about.pool.words, 2), several(rng, about.sizes, 2)
        if rng.random() < 0.5:
            much[1] = much[0]
        same = much[0] == much[1]
        return {
            **_words(about, about.up, about.down),
            "told": _told(rng, about, who, much),
            "listed": " ".join(f"{one}: {n}." for one, n in zip(who, much, strict=True)),
            "group": enumerate_words([about.pool.subject(one) for one in who]),
            "n1": str(much[0]),
            "n2": str(much[1]),
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
        the = [about.pool.subject(one) for one in who]
        steps = [f"{one} {about.verb} {up.more} than {two}" for one, two in pairwise(the)]
        turned = [f"{two} {about.verb} {down.more} than {one}" for one, two in pairwise(the)]
        first, *rest = shuffled(rng, range(many - 1))
        facts = [steps[first]]  # the solution begins with the word that the question began with
        facts += [turned[n] if rng.random() < 0.5 else steps[n] for n in rest]
        ends = [the[0], the[-1]] if rng.random() < 0.5 else [the[-1], the[0]]
        fields = {
            **_words(about, up, down),
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
