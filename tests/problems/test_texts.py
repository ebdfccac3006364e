"""Is every template sound: can its solution be read off its question, and is its English right?"""

from __future__ import annotations

import re
from functools import cache

import pytest
from training.problems import KINDS, Problem, generate
from training.problems.catalog import templates
from training.problems.grammar import singular, with_article
from training.problems.names import PEOPLE
from training.problems.template import Telling, Template
from training.problems.text import fields_of, words_behind

# Found by trying in the head, as in long division: the solution then proves it.
GUESSED = {"q"}


@cache
def sample() -> list[Problem]:
    return [*generate("train", 11, 6000), *generate("held_out_templates", 11, 3000)]


def tellings(*kinds: str) -> list[tuple[Template, Telling]]:
    return [(t, telling) for t in templates() if t.kind in kinds for telling in t.tellings]


def test_a_solution_names_only_what_the_question_named() -> None:
    for template, telling in tellings(*KINDS):
        asked = words_behind(fields_of((*telling.passage, *telling.questions)), template.gives)
        said = words_behind(fields_of((telling.worked, telling.answer)), template.gives)
        assert said <= asked, (template.id, telling.questions)


def test_a_solution_uses_only_numbers_told_or_computed() -> None:
    for template, telling in tellings("word"):
        told = {name.split()[0] for name in fields_of(telling.questions)} | GUESSED
        for name in fields_of((telling.worked,)):
            if name.startswith("="):
                told.add(name[1:])
            elif name.split()[0] in template.gives:
                assert name.split()[0] in told, (template.id, name)


def test_there_is_variety() -> None:
    assert len({person.name for person in PEOPLE}) == len(PEOPLE) > 250
    by_kind = {kind: [t for t in templates() if t.kind == kind] for kind in KINDS}
    assert len(by_kind["word"]) > 100
    assert all(len(found) >= 20 for found in by_kind.values())
    for template in templates():
        wordings = {question for telling in template.tellings for question in telling.questions}
        assert len(wordings) > 1 or template.held_out, template.id
    assert {problem.steps for problem in sample() if problem.kind == "word"} >= {1, 2, 3, 4}


def test_text_is_plain_and_finished() -> None:
    for problem in sample():
        text = f"{problem.question}\n{problem.worked}"
        assert text.isascii()
        assert not re.search(r"[{}\[\]()|]|  |None|_", text), text
        assert problem.question[0].isupper() or problem.question[0].isdigit(), text
        assert problem.question[-1] in "?.", text
        assert not re.search(r"[.?] [a-z](?!\S*:)", problem.question), problem.question


def test_articles_and_numbers_agree() -> None:
    for problem in sample():
        text = f"{problem.question} {problem.worked}"
        assert not re.search(r"\b[Aa] [aeio]\w", text), text
        assert not re.search(r"\b[Aa]n (?!hour)[b-df-hj-np-tv-z]\w", text), text
        assert not re.search(r"\b1 (dollars|days|months|pages|miles|hours|people)\b", text), text


@pytest.mark.parametrize(
    ("plural", "one"),
    [("boxes", "box"), ("berries", "berry"), ("cookies", "cookie"), ("toy cars", "toy car")],
)
def test_singulars(plural: str, one: str) -> None:
    assert singular(plural) == one


@pytest.mark.parametrize("said", ["an apple", "a box", "an umbrella", "an hour", "a unicorn"])
def test_articles(said: str) -> None:
    assert with_article(said.split()[1]) == said
