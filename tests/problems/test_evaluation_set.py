"""Does the package ship the problems that the generator gives, and say when more are asked for?"""

from __future__ import annotations

import json
import lzma
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from training.problems import evaluation_set, extract_answer, generate, same_answer
from training.problems.catalog import templates

from moesaic.cli.study import eval_options
from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.lab.evaluation.problem_set import SPLITS, held_out_problems
from moesaic.lab.evaluation.question_task import bundled_questions
from training import evaluation


def rows(packed: bytes) -> list[dict[str, str]]:
    return [json.loads(line) for line in lzma.decompress(packed).decode().splitlines()]


def test_the_file_is_what_the_generator_gives() -> None:
    """Compared unpacked: another release of liblzma may pack the same text otherwise."""
    shipped = rows(evaluation_set.PACKAGED.read_bytes())
    made = list(evaluation_set.evaluation_set())
    assert shipped == made, "run python -m training.problems.evaluation_set"
    assert len(shipped) == len(SPLITS) * evaluation_set.PER_SPLIT


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("count", [0, 1, eval_options.PROBLEMS, eval_options.MAX_PROBLEMS])
def test_smaller_counts_are_the_first_of_a_split(split: str, count: int) -> None:
    problems = held_out_problems(split, count)
    made = list(generate(split, evaluation.SEED, count))
    assert [(p.question, p.answer, p.kind) for p in made] == list(problems)
    for problem, origin in zip(problems, made, strict=True):
        assert same_answer(extract_answer(origin.worked), problem.answer)


def test_the_command_writes_the_file(tmp_path: Path) -> None:
    assert evaluation_set.main(["-o", str(tmp_path / "set.xz")]) == 0
    assert rows((tmp_path / "set.xz").read_bytes()) == rows(evaluation_set.PACKAGED.read_bytes())


def test_options_know_the_set() -> None:
    """They name it without reading it, for `--help`."""
    assert eval_options.MAX_PROBLEMS == evaluation_set.PER_SPLIT
    assert eval_options.SPLITS == SPLITS == evaluation.HELD_OUT
    assert eval_options.PROBLEMS <= evaluation_set.PER_SPLIT


def test_the_file_stays_small() -> None:
    assert evaluation_set.PACKAGED.stat().st_size < 64_000


@pytest.mark.parametrize("count", [-1, 1001])
def test_other_counts_are_refused(count: int) -> None:
    with pytest.raises(ImpossibleSetting, match=f"{count} problems of .*ask for at most 1000"):
        held_out_problems(SPLITS[0], count)


def test_other_splits_are_refused() -> None:
    with pytest.raises(UnknownName, match="held_out_numbers"):
        held_out_problems("train", 1)


# Are the package's 200 questions worded by no template of training?

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
