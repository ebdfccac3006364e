"""GSM8K from the user's files: grade-school problems, with worked examples before each question.

An answer is the number after `####`, with whatever commas and dollar signs it is written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import NamedTuple

from moesaic.core.errors import ImpossibleSetting
from moesaic.lab.evaluation.input_files import Line, Unfit, read_lines
from moesaic.lab.evaluation.items import Item, Question, Unusable, Verdict
from moesaic.lab.evaluation.prompts import Shot, ask, stops
from moesaic.models.text.tokenizer import Tokenizer

NAME = "gsm8k"
MAX_TOKENS = 256
SHOTS = 8
_SAID = re.compile(r"####\s*([^\n]*)")
_NUMBER = re.compile(r"(-?) ?(\d+(?:\.\d+)?|\.\d+)(\s*[/^*]\s*\d)?")
_PLAIN = str.maketrans({",": None, "$": None, "\N{MINUS SIGN}": "-"})


class Gsm8kData(NamedTuple):
    """What is asked, and the examples before it."""

    lines: list[Line]
    shots: list[Shot]


def read_gsm8k(file: Path, shots_file: Path | None, shots: int) -> Gsm8kData:
    """Read the data; without `shots_file`, the examples are the last lines, which are then not
    asked."""
    lines = list(read_lines(file))
    if not lines:
        return Gsm8kData([], [])
    examples = list(read_lines(shots_file)) if shots_file is not None else lines[::-1]
    chosen: list[Shot] = []
    taken: set[int] = set()
    unfit = ""
    for line in examples:
        if len(chosen) == shots:
            break
        try:
            chosen.append(_shot(line))
        except Unfit as error:  # where it is a question, too, it is reported as such
            unfit = unfit or f" (line {line.number}: {error})"
            continue
        taken.add(line.number)
    if len(chosen) < shots:
        raise ImpossibleSetting(
            f"{shots} examples were asked for and {str(shots_file or file)!r} has {len(chosen)}"
            f"{unfit}: give a file with more, or fewer --shots"
        )
    if shots_file is None:
        lines = [line for line in lines if line.number not in taken]
        chosen.reverse()
    return Gsm8kData(lines, chosen)


def gsm8k_items(
    parts: Gsm8kData, file: Path, tokenizer: Tokenizer, form: str, max_tokens: int = MAX_TOKENS
) -> list[Item]:
    return [_item(line, parts.shots, file, tokenizer, form, max_tokens) for line in parts.lines]


def number_in(text: str) -> Decimal | None:
    """The number after the first `####`; something to be worked out, like 3/4, is none."""
    said = _SAID.search(text)
    if said is None:
        return None
    found = _NUMBER.search(said[1].translate(_PLAIN))
    return None if found is None or found[3] else Decimal(found[1] + found[2])


def _item(
    line: Line,
    shots: Sequence[Shot],
    file: Path,
    tokenizer: Tokenizer,
    form: str,
    max_tokens: int,
) -> Item:
    name = f"line {line.number}"
    try:
        shot = _shot(line)
        if any(shot.question == shown.question for shown in shots):
            raise Unfit("its question is one of the examples, with its answer")
        prompt = ask(tokenizer, form, shot.question, shots)
    except (Unfit, ImpossibleSetting) as error:
        return Unusable(NAME, name, f"{file}, line {line.number}: {error}")
    right = number_in(shot.answer)
    assert right is not None, "a shot was checked"
    judge = partial(_judge, right)
    return Question(NAME, name, prompt, max_tokens, judge, str(right), stops(form))


def _shot(line: Line) -> Shot:
    question, answer = line.text("question"), line.text("answer")
    if number_in(answer) is None:
        raise Unfit("the field 'answer' has no number after ####")
    return Shot(question.strip(), answer.strip())


def _judge(expected: Decimal, text: str) -> Verdict:
    found = number_in(text)
    return Verdict(found == expected, "it says no number after ####" if found is None else "")
