"""Is an answer found in text, and recognised however it is written?"""

from __future__ import annotations

import pytest
from training.problems import extract_answer, generate, same_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("12 + 7 = 19.\nAnswer: 19", "19"),
        ("Answer: 3\nNo, wait.\nanswer:  4 .", "4"),
        ("Answer: cat, dog\n", "cat, dog"),
        ("Answer: 5\nAnswer:", "5"),
        ("It is 19.", None),
        ("", None),
    ],
)
def test_the_last_answer_is_found(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("19", " 19. "),
        ("1,250", "1250"),
        ("$7", "7"),
        ("Monday", "monday"),
        ("cat,dog", "Cat,  dog"),
        ("May 3", "may  3."),
        ("3:05", "3:05"),
    ],
)
def test_spelling_does_not_matter(a: str, b: str) -> None:
    assert same_answer(a, b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("19", "91"),
        ("1, 250, 3", "1250, 3"),
        ("cat, dog", "dog, cat"),
        ("3:05", "3:50"),
        ("19", None),
        (None, None),
        ("", "0"),
    ],
)
def test_another_answer_is_another_answer(a: str | None, b: str | None) -> None:
    assert not same_answer(a, b)


def test_every_worked_solution_ends_with_its_answer() -> None:
    for problem in generate("train", 1, 2000):
        assert problem.worked.splitlines()[-1] == f"Answer: {problem.answer}"
        assert problem.worked.count("Answer:") == 1
        assert extract_answer(problem.worked) == problem.answer
