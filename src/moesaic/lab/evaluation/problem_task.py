"""Held-out problems of `moesaic.problems`: the answer must be the right one, exactly.

Asked and judged as at the end of training, so that scores can be compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from moesaic.lab.evaluation.items import Question, Verdict
from moesaic.lab.evaluation.prompts import ask, stops
from moesaic.models.tokenizer import Tokenizer
from moesaic.problems import extract_answer, generate, same_answer

NAME = "problems"
SPLITS = ("held_out_numbers", "held_out_templates")
MAX_TOKENS = 160
SEED = 0  # of the problems that training is judged by


def problem_items(
    tokenizer: Tokenizer,
    form: str,
    count: int,
    splits: Sequence[str] = SPLITS,
    seed: int = SEED,
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
        for number, problem in enumerate(generate(split, seed, count))
    ]


def _judge(expected: str, text: str) -> Verdict:
    found = extract_answer(text)
    if found is None:
        return Verdict(False, "it says no answer")
    return Verdict(same_answer(found, expected))
