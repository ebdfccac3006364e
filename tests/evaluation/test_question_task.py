"""Are questions with short answers asked as conversations, and judged by what is said?"""

from __future__ import annotations

from pathlib import Path

import pytest
from small_files import write_lines

from chat_models import talking
from moesaic.lab.evaluation.items import Question, Unusable
from moesaic.lab.evaluation.question_task import bundled_questions, judge, question_items
from moesaic.models.text.tokenizer import Tokenizer


@pytest.mark.parametrize(
    ("text", "accepted", "right"),
    [
        ("40 + 45 = 85.\nAnswer: 85", ["85"], True),
        ("85 it is.\nAnswer: 58", ["85"], False),
        ("It is 1,085 dollars.", ["1085"], True),
        ("Answer: 85:30", ["85"], False),
        ("Answer: The plum.", ["plum"], True),
        ("Answer: plum", ["the plum"], True),
        ("She says rice", ["rice"], False),
        ("\n\nin caves\n", ["caves", "in caves"], True),
        ("", ["85"], False),
        ("I do not know that.", [], True),
        ("I can\N{RIGHT SINGLE QUOTATION MARK}t say.", [], True),
        ("The text says: Linda did not.\nAnswer: Linda", [], False),
        ("Answer: 4", [], False),
    ],
)
def test_answers_are_judged(text: str, accepted: list[str], right: bool) -> None:
    assert judge(accepted, text).right is right


def test_a_turn_before_is_part_of_the_prompt(tmp_path: Path) -> None:
    line = {"question": "And if 4 go?", "answer": "11", "earlier": ["6 and 9?", "15"], "kind": "x"}
    tokenizer = Tokenizer.open(talking().folder)
    for form in ("chat", "plain"):
        (item,) = question_items(write_lines(tmp_path / "q.jsonl", [line]), tokenizer, form)
        assert isinstance(item, Question)
        asked = tokenizer.decode(item.prompt, skip_special=False)
        assert asked.index("6 and 9?") < asked.index("Answer: 15") < asked.index("And if 4 go?")
        assert (item.expected, item.kind) == ("11", "x")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"question": 3}, "'question' is 3"),
        ({"answer": []}, "'answer' is []"),
        ({"answer": ["a", None]}, "'answer' is null"),
        ({"answer": 4}, "'answer' is 4"),
        ({"earlier": "before"}, "'earlier'"),
        ({"earlier": ["a", 1]}, "'earlier' is 1"),
        ({"kind": 7}, "'kind' is 7"),
    ],
)
def test_a_line_that_cannot_be_asked_says_why(
    tmp_path: Path, changes: dict[str, object], why: str
) -> None:
    line = {"question": "6 and 9?", "answer": "15"} | changes
    file = write_lines(tmp_path / "q.jsonl", [line])
    (item,) = question_items(file, Tokenizer.open(talking().folder), "plain")
    assert isinstance(item, Unusable)
    assert why in item.why
    assert "line 1" in item.why


def test_the_packages_questions_can_all_be_asked() -> None:
    items = question_items(bundled_questions(), Tokenizer.open(talking().folder), "chat")
    assert len(items) == 200
    assert all(isinstance(item, Question) for item in items)
