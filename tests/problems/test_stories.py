"""Are stories put together from sentences sound: told whole, told right, told in many ways?"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from random import Random

import pytest
from training.problems import Problem, generate
from training.problems.catalog import templates
from training.problems.names import PEOPLE
from training.problems.stories_numbers import happenings, plans
from training.problems.stories_words import families

NAMES = {person.name: person for person in PEOPLE}


@cache
def all_stories() -> list[Problem]:
    return [p for p in generate("train", 7, 12_000, ["word"]) if p.template.startswith("story-")]


def course(problem: Problem) -> list[tuple[str, int, int]]:
    (text,) = problem.values
    found = re.findall(r"([a-z_]+)(\d+)x(\d+)", text)
    return [(kind, int(n), int(m)) for kind, n, m in found]


def outcome(problem: Problem) -> int:
    now = 0
    for kind, n, m in course(problem):
        now = {
            "start": n,
            "packs": n * m,
            "gain": now + n,
            "loss": now - n,
            "double": now * 2,
            "triple": now * 3,
            "half": now // 2,
            "packs_in": now + n * m,
            "packs_out": now - n * m,
            "share": now // n,
        }[kind]
    return now


def test_the_answer_is_what_the_course_comes_to() -> None:
    assert len(all_stories()) > 1500
    for problem in all_stories():
        assert problem.answer == str(outcome(problem)), problem


def test_the_question_tells_every_number_of_the_course() -> None:
    """Otherwise the course could not decide which split a question belongs to."""
    for problem in all_stories():
        told = Counter(re.findall(r"\d+", problem.question))
        needed: Counter[str] = Counter()
        for kind, n, m in course(problem):
            if kind not in ("double", "triple", "half"):
                needed.update([str(n), str(m)] if m else [str(n)])
        assert not needed - told, problem


def test_a_solution_takes_its_numbers_from_the_question_or_its_own_steps() -> None:
    for problem in all_stories():
        known = {"2", "3", *re.findall(r"\d+", problem.question)}
        known |= set(re.findall(r"= (\d+)(?=\.)", problem.worked))
        for said in re.findall(r"[A-Z][^.=]*?(\d+)[^.=+x/-]*\.", problem.worked):
            assert said in known, problem


def test_pronouns_fit_the_person() -> None:
    """Where one person alone is named, no pronoun of the other kind stands in the text."""
    for problem in all_stories():
        text = problem.question
        named = {NAMES[word] for word in re.findall(r"[A-Z][a-z]+", text) if word in NAMES}
        if len(named) == 1:
            (person,) = named
            other = {"he", "him", "his"} if person.he == "she" else {"she", "her"}
            assert not other & set(re.findall(r"\w+", text.lower())), problem


def test_the_text_is_clean() -> None:
    for problem in all_stories():
        text = f"{problem.question} {problem.worked}"
        assert not re.search(r" [.,?]|,[.,?]|\.\.|[<>=]{2}|[<>{}|]|\bit's\b", text), problem
        assert "now" not in problem.question or not re.search(r"\bdid\b", problem.question), problem


def test_stories_are_told_in_many_ways() -> None:
    """With the numbers, names and things taken out, few stories read alike."""
    bare = Counter(re.sub(r"\d+", "#", p.question) for p in all_stories())
    assert bare.most_common(1)[0][1] <= 3
    steps = Counter(problem.steps for problem in all_stories())
    assert set(steps) == {1, 2, 3, 4}
    assert steps[2] + steps[3] > 0.6 * len(all_stories())


def test_every_family_is_told() -> None:
    told = {template.id.split("-")[1] for template in templates() if "story-" in template.id}
    assert told == set(families())


@pytest.mark.parametrize("name", sorted(families()))
def test_every_wording_can_be_told(name: str) -> None:
    """No field is misspelled, nothing that happens lacks a solution's sentence."""
    family = families()[name]
    names = "A B s o p t u one n m x who boxes box helpers helper place shop relative"
    fields = dict.fromkeys(re.findall(r"\w+", names), "y")
    for kind, wordings in family.wordings.items():
        for wording in wordings:
            for text in (*wording.said, *wording.doing, *wording.question, *wording.find):
                assert not re.search(r"[<>/|]", text), (name, kind, text)
                text.format_map(fields)
            assert kind != "share" or wording.question[0], (name, wording)
    assert all(f"work_{kind}" in family.wordings for kind in family.kinds)


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_plan_takes_its_steps(steps: int) -> None:
    rng = Random(1)
    for plan in plans(families()["collection"].kinds, steps):
        found = next(filter(None, (happenings(rng, plan, 6, 90) for _ in range(1000))))
        assert sum(len(happening.steps) for happening in found) == steps
        assert [happening.kind for happening in found] == list(plan)


@pytest.mark.parametrize("name", sorted(families()))
def test_a_sentence_tells_one_thing_that_happens(name: str) -> None:
    """Two courses never read the same: one could be in training and the other held out."""
    family = families()[name]
    beginnings = ("start", "packs")
    for kinds in (beginnings, set(family.kinds) - set(beginnings)):
        told: dict[str, tuple[str, list[str]]] = {}
        for kind in kinds:
            for wording in family.wordings.get(kind, ()):
                means = kind, re.findall(r"\{([nm])\}", wording.said[0])
                for said in {re.sub(r"\{[nm]\}", "#", text) for text in wording.said}:
                    assert told.setdefault(said, means) == means, said
