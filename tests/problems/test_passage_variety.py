"""Are facts told and asked in many ways, and does every way give the answer?"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import pytest
from training.problems import Problem, generate
from training.problems.catalog import templates
from training.problems.reader import blocks

THEMES = sorted((files("training.problems") / "data" / "relations").iterdir(), key=lambda f: f.name)
FACTS = {t.id for t in templates() if re.search("-(alike|mixed|portrait)$", t.id)}


@cache
def passages() -> list[Problem]:
    return list(generate("train", 4, 6000, ["passage"]))


@pytest.mark.parametrize("theme", THEMES, ids=lambda file: file.name)
def test_every_sentence_of_a_relation_holds_every_answer(theme: object) -> None:
    for name, lines in blocks(theme.read_text()):  # type: ignore[attr-defined]
        texts = [said for word, said in lines if word == "text"]
        answers = [said for word, said in lines if word == "answer"]
        assert len(texts) > 2, name
        assert "{A}" in answers, name
        for answer in answers:
            about = answer.replace("{his} ", "").replace("{", "").replace("}", "")
            assert all(about in text.replace("{", "") for text in texts), (name, answer)


def test_a_passage_put_together_names_whom_it_is_asked_about() -> None:
    found = [problem for problem in passages() if problem.template in FACTS]
    assert len(found) > 500
    for problem in found:
        relation, said = problem.values
        who = said.split()[0]
        assert relation
        assert who in problem.worked, problem
        assert problem.question.count(who) >= 1


def test_questions_begin_in_many_ways() -> None:
    asked: set[str] = set()
    for problem in passages():
        asked.add(problem.question.rpartition(". ")[2].split()[0])
    assert {"Who", "What", "Where", "When", "How", "Which", "Why", "Whose", "To", "By"} <= set(
        asked
    )


def test_there_are_many_passages() -> None:
    assert sum(t.kind == "passage" and not t.held_out for t in templates()) > 100
