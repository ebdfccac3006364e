"""Are the package's 200 questions worded by no template of training?"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache

from training.problems.catalog import templates

from moesaic.lab.evaluation.question_task import bundled_questions

_SLOT = re.compile(r"\\\{[^}]*\\\}")
_LETTERS = 12  # fewer in a wording are no wording: "{told} {question}"


@cache
def wordings() -> re.Pattern[str]:
    """Every question that a template asks, with anything in the place of its words and numbers."""
    asked = {
        question
        for template in templates()
        for telling in template.tellings
        for question in telling.questions
    }
    known = [text for text in asked if len(re.sub(r"\{[^}]*\}|\W", "", text)) >= _LETTERS]
    forms = {_SLOT.sub(r"[\\w:' -]+?", re.escape(text)) for text in known}
    assert len(forms) > 1000
    return re.compile("|".join(f"(?:{form})" for form in sorted(forms)), re.IGNORECASE)


def test_there_are_200_and_none_is_a_templates() -> None:
    lines = bundled_questions().read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line) for line in lines]
    assert Counter(one["kind"] for one in questions) == {
        "arithmetic": 40,
        "one step": 30,
        "several steps": 30,
        "comparison": 25,
        "passage": 30,
        "follow-up": 25,
        "cannot know": 20,
    }
    asked = [text for one in questions for text in (*one.get("earlier", [])[:1], one["question"])]
    assert len(set(asked)) == len(asked)
    assert [text for text in asked if wordings().search(text)] == []


def test_a_templates_question_is_recognized() -> None:
    assert wordings().search("Ann is 30 years old. How old will she be in 12 years?")
