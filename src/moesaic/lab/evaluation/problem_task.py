"""Held-out problems that come with the package: the answer must be the right one, exactly.

Asked and judged as at the end of training, so that scores can be compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from moesaic.lab.evaluation.final_answer import extract_answer, same_answer
from moesaic.lab.evaluation.items import Question, Verdict
from moesaic.lab.evaluation.problem_set import SPLITS, held_out_problems
from moesaic.lab.evaluation.prompts import ask, stops
from moesaic.models.text.tokenizer import Tokenizer

NAME = "problems"
MAX_TOKENS = 160


def problem_items(
    tokenizer: Tokenizer,
    form: str,
    count: int,
    splits: Sequence[str] = SPLITS,
    max_tokens: int = MAX_TOKENS,
) -> list[Question]:
    """`count` of each split."""
    return [
        Question(
            task=NAME,
            item=f"{split} {number}",
            prompt=ask(tokenizer, form, problem.question),
            max_tokens=max_tokens,
            judge=partial(_judge, problem.answer),
            expected=problem.answer,
            stop=stops(form),
            group=split,
            kind=problem.kind,
        )
        for split in splits
        for number, problem in enumerate(held_out_problems(split, count))
    ]


def _judge(expected: str, text: str) -> Verdict:
    found = extract_answer(text)
    if found is None:
        return Verdict(False, "it says no answer")
    return Verdict(same_answer(found, expected))
